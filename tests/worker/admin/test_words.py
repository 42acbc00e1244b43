"""Numbers, times and money as people read them."""

from datetime import timedelta

import pytest

from services.worker.admin import words


@pytest.mark.parametrize(
    ("nanodollars", "written"),
    [
        (None, words.NOTHING),
        (0, "$0.00"),
        (1, "$0.000000001"),
        (458_000, "$0.000458"),
        (84_000_000, "$0.084"),
        (90_000_000, "$0.09"),
        (99_999_999, "$0.10"),
        (510_000_000, "$0.51"),
        (1_234_567_890_000, "$1,234.57"),
    ],
)
def test_money_is_told_to_what_matters(nanodollars: int | None, written: str) -> None:
    assert words.dollars(nanodollars) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (61, "1 min 1 s"),
        (3_600, "1 h 0 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_waits_are_told_in_two_units(seconds: float, written: str) -> None:
    assert words.span(timedelta(seconds=seconds)) == written


def test_nothing_is_a_dash() -> None:
    assert {words.span(None), words.took(None), words.percent(None), words.moment(None)} == {
        words.NOTHING
    }


def test_what_took_less_than_a_millisecond_is_told_as_that() -> None:
    assert [words.took(0), words.took(1), words.took(1500)] == ["< 1 ms", "1 ms", "1.5 s"]


def test_messages_become_sentences() -> None:
    assert words.sentence("the cache is away") == "The cache is away."
    assert words.sentence("It is.") == "It is."
    assert words.sentence("") == "."
