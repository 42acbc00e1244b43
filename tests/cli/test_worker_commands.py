"""Dead letters and metrics as people read them."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from glossa.cache.v1 import cache_pb2
from glossa.worker.v1 import worker_pb2 as pb
from rich.console import Console

from services.cli.worker import (
    Choice,
    run_redrive,
    show_letter,
    show_letters,
    show_metrics,
    show_redriven,
    sparkline,
)
from services.runtime.errors import LimitReached

HASH = "0123456789abcdef" * 4
ID = "0b7e2c1a-5d3f-4e6a-9c8b-7a6f5e4d3c2b"


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=96, highlight=False)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def letter(**changes: object) -> pb.DeadLetter:
    one = pb.DeadLetter(
        generation_id=ID,
        pdf_hash=HASH,
        page=7,
        locale="en",
        model="gpt-4.1-mini",
        error=cache_pb2.GenerationError(reason="MODEL_UNAVAILABLE", message="No answer."),
        attempts=3,
        cost_nanodollars=1_200_000,
        **changes,  # type: ignore[arg-type]
    )
    one.failed_at.FromJsonString("2026-11-18T10:00:00Z")
    one.failures.add(attempt=1, reason="MODEL_UNAVAILABLE", message="[red]No answer.")
    return one


def test_each_dead_letter_is_one_line_that_a_terminal_can_hold(console: Console) -> None:
    show_letters(console, pb.ListDeadLettersResponse(dead_letters=[letter()], total=5))

    head, line, note = shown(console).splitlines()
    assert len(head) <= 96
    expected = [ID, "11-18", "10:00", "012345", "p.", "7", "MODEL_UNAVAILABLE", "3", "$0.0012"]
    assert line.split() == expected
    assert note == "5 dead letters, 1 shown; --limit shows more"


def test_no_dead_letters_is_said_in_words(console: Console) -> None:
    show_letters(console, pb.ListDeadLettersResponse())

    assert shown(console) == "nothing has failed\n"


def test_one_letter_tells_everything_and_takes_no_words_for_markup(console: Console) -> None:
    show_letter(console, letter(permanent=True, redriven_as="another"))

    text = shown(console)
    assert text.startswith("MODEL_UNAVAILABLE: No answer.")
    assert HASH in text
    assert "3 (trying again cannot help)" in text
    assert "attempt 1: MODEL_UNAVAILABLE, [red]No answer." in text
    assert "as another" in text


def test_a_redrive_is_summed_up(console: Console) -> None:
    first = pb.RedriveDeadLettersResponse(total=9)
    first.reasons.add(reason="MODEL_UNAVAILABLE", count=8)
    first.reasons.add(reason="PDF_UNREADABLE", count=1)
    last = pb.RedriveDeadLettersResponse(total=9, started=6, already_live=2, gone=1)

    show_redriven(console, first, last, dry_run=False)

    lines = shown(console).splitlines()
    assert lines[0] == "redrove 6 of 9 dead letters"
    assert lines[1].split() == ["████████████", "8", "MODEL_UNAVAILABLE"]
    assert lines[2].split() == ["██░░░░░░░░░░", "1", "PDF_UNREADABLE"]
    assert "2 pages had been asked for again since" in lines[3]
    assert "1 were forgotten by the Cache" in lines[4]


def test_a_dry_run_says_what_would_be(console: Console) -> None:
    show_redriven(
        console,
        pb.RedriveDeadLettersResponse(),
        pb.RedriveDeadLettersResponse(total=1),
        dry_run=True,
    )

    assert shown(console) == "would redrive 1 dead letter\n"


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([0, 0], "▁▁"),
        ([0, 1, 100], "▁▂█"),
        ([7, 6, 5, 4, 3, 2, 1, 0], "█▇▆▅▄▃▂▁"),
    ],
)
def test_a_sparkline_shows_nothing_only_for_nothing(values: list[int], line: str) -> None:
    assert sparkline(values) == line


def test_a_day_is_shown_with_hours_parts_and_failures(console: Console) -> None:
    total = pb.Metrics(
        cache_hits=3,
        cache_misses=1,
        failures=2,
        generation=pb.Latency(p50_ms=1200, p95_ms=2500, p99_ms=2500),
        hit=pb.Latency(p50_ms=4, p95_ms=9, p99_ms=9),
    )
    summary = pb.GetDailySummaryResponse(day="2026-11-18", total=total, open_dead_letters=1)
    summary.hours.add(hour=23, metrics=total)
    summary.modes.add(name="with_images", metrics=total)
    summary.documents.add(name=HASH, metrics=total)
    summary.failures.add(reason="MODEL_UNAVAILABLE", count=2)

    show_metrics(console, summary)

    lines = shown(console).splitlines()
    assert lines[0] == "2026-11-18  4 requests, 75 % from the cache"
    assert lines[1].startswith("2 failures, 1 dead letter; counted until")
    assert lines[2].split()[:2] == ["requests", "▁" * 23 + "█"]
    row = ["4", "75", "%", "█████████░░░", "4", "ms", "9", "ms", "1.2", "s", "2.5", "s", "2.5", "s"]
    rows = [line.split() for line in lines]
    assert ["with", "images", *row] in rows
    assert ["0123456789ab", *row] in rows
    assert ["████████████", "2", "MODEL_UNAVAILABLE"] in rows


def test_a_day_without_requests_says_when_there_will_be_some(console: Console) -> None:
    show_metrics(console, pb.GetDailySummaryResponse(day="2026-11-18"))

    assert shown(console).splitlines()[-1].endswith("hours are added as they end")


def test_a_choice_by_age_counts_from_now() -> None:
    chosen = Choice(since="12h", reason="MODEL_UNAVAILABLE").message()

    assert chosen.HasField("begins_at")
    assert chosen.reason == "MODEL_UNAVAILABLE"
    assert not Choice().message().HasField("begins_at")


class StoppedRedrive:
    """A worker whose money runs out after the first piece."""

    async def RedriveDeadLetters(
        self, request: pb.RedriveDeadLettersRequest, **_: object
    ) -> AsyncIterator[pb.RedriveDeadLettersResponse]:
        yield pb.RedriveDeadLettersResponse(total=250)
        yield pb.RedriveDeadLettersResponse(total=250, started=100)
        raise LimitReached("the ceiling of the day is reached", retry_after=timedelta(hours=3))


async def test_a_redrive_that_is_stopped_tells_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def stopped() -> AsyncIterator[tuple[StoppedRedrive, str]]:
        yield StoppedRedrive(), "nowhere"

    monkeypatch.setattr("services.cli.worker._worker", stopped)

    with pytest.raises(LimitReached):
        await run_redrive(Choice(), everything=True, dry_run=False, as_json=False)

    assert "redrove 100 of 250 dead letters" in capsys.readouterr().out
