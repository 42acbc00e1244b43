"""How numbers, times and money are written on the pages."""

import math
from datetime import date, datetime, timedelta
from itertools import pairwise

NOTHING = "\N{EN DASH}"


def count(number: int | None, or_more: bool = False) -> str:
    return NOTHING if number is None else f"{number:,}{'+' if or_more else ''}"


def counted(number: int, noun: str) -> str:
    """1 letter, 2 letters."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f} %"


def dollars(nanodollars: int | None) -> str:
    """To the cent; small sums to three digits that mean something."""
    if nanodollars is None:
        return NOTHING
    value = nanodollars / 1e9
    if nanodollars == 0 or value >= 0.1:
        return f"${value:,.2f}"
    digits = 2 - math.floor(math.log10(value))
    whole, _, part = f"{value:.{digits}f}".partition(".")
    return f"${whole}.{part.rstrip('0'):0<2}"


def took(milliseconds: int | None) -> str:
    """Samples are whole milliseconds, rounded down: a zero was measured too."""
    if milliseconds is None:
        return NOTHING
    if milliseconds == 0:
        return "< 1 ms"
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    return f"{milliseconds / 1000:.1f} s"


def span(length: timedelta | None) -> str:
    """How long something has waited, in the two largest units."""
    if length is None:
        return NOTHING
    seconds = max(0, int(length.total_seconds()))
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for (large, many), (small, few) in pairwise(units):
        if seconds >= many:
            return f"{seconds // many} {large} {seconds % many // few} {small}"
    return f"{seconds} s"


def moment(at: datetime | None) -> str:
    return NOTHING if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def exactly(at: datetime) -> str:
    """To the millisecond, where the order of things counts."""
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"


def day(value: date) -> str:
    return f"{value:%a} {value.day} {value:%b}"


def short(text: str, length: int = 10) -> str:
    """The beginning of a hash or id, for tables."""
    return text if len(text) <= length + 1 else f"{text[:length]}…"


def sentence(words: str) -> str:
    """An error's message as people write it."""
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith(".") else ".")


def label(word: str) -> str:
    """text_only as people write it."""
    return word.replace("_", " ")
