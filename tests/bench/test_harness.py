"""The judge of the benchmarks: what passes, what does not, and that load is counted as answered."""

import math
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.bench import report
from tests.bench.__main__ import Outcome, exit_code, rows
from tests.bench.hits import ECHO, bare_echo, load
from tests.bench.load import write_messages
from tests.bench.report import Figure, NotRun, median_ratio, standalone


def figure(value: float, *, at_least: bool = True, broken: str = "") -> Figure:
    return Figure(
        row=1,
        what="something",
        ours="",
        reference="",
        value=value,
        unit="x",
        bar=1.0,
        at_least=at_least,
        broken=broken,
    )


@pytest.mark.parametrize(
    ("value", "at_least", "verdict"),
    [
        (1.0, True, "ok"),
        (0.99, True, "MISSED"),
        (1.0, False, "ok"),
        (1.01, False, "MISSED"),
        (math.nan, True, "MISSED"),
        (math.nan, False, "MISSED"),
    ],
)
def test_a_figure_is_held_against_its_bar(value: float, at_least: bool, verdict: str) -> None:
    assert figure(value, at_least=at_least).verdict == verdict


def test_a_figure_with_a_broken_promise_is_missed_however_good() -> None:
    assert figure(100.0, broken="two model calls").verdict == "MISSED"


def test_rounds_are_compared_one_by_one() -> None:
    """The machine was ten times slower in the last round, for both."""
    assert median_ratio([20.0, 22.0, 2.0], [10.0, 11.0, 1.0]) == 2.0


def test_a_row_says_by_its_exit_code_what_came_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["row"])

    async def good() -> list[Figure]:
        return [figure(2.0)]

    async def one_missed() -> list[Figure]:
        return [figure(2.0), figure(0.5)]

    async def no_peer() -> list[Figure]:
        raise NotRun("there is no peer")

    assert [standalone(run) for run in (good, one_missed, no_peer)] == [0, 1, 2]


def test_what_was_not_measured_is_no_success() -> None:
    good = Outcome(row=1, module="", figures=[figure(2.0)])
    missed = Outcome(row=1, module="", figures=[figure(2.0), figure(0.5)])
    absent = Outcome(row=2, module="", not_run="no peer")
    crashed = Outcome(row=3, module="", failed="Traceback")

    assert exit_code([good]) == 0
    assert exit_code([good, missed]) == 1
    assert exit_code([good, absent]) == 2
    assert exit_code([absent, crashed]) == 1


def test_every_row_of_the_table_has_a_file() -> None:
    assert {row for row, _ in rows(())} >= set(range(1, 15))
    assert rows(["4"]) == [(4, "tests.bench.row_04_queue")]


def test_a_row_that_was_not_run_is_not_shown_as_passed() -> None:
    table = report.figures_table([], [(2, "no LiteLLM")])
    assert "not run" in str(list(table.columns[-1].cells))


async def test_the_load_generator_counts_answers(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    write_messages(messages, [b"x" * size for size in range(0, 40_000, 200)])
    async with bare_echo() as address:
        done = await load(address, ECHO, messages, token="t" * 300, in_flight=16)
    assert done.per_second > 0
    assert 0 < done.p50 <= done.p99


async def test_the_load_generator_tells_of_refusals(tmp_path: Path) -> None:
    messages = tmp_path / "messages"
    write_messages(messages, [b"x"] * 10)
    async with bare_echo() as address:
        with pytest.raises(AssertionError, match="10 of 10 failed"):
            await load(address, "/bench.Echo/Unknown", messages, token="t", in_flight=4)


async def test_the_echo_gives_back_what_it_got() -> None:
    async with bare_echo() as address, grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(ECHO)
        assert await call(b"same") == b"same"
