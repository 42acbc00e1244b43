"""A page's text as Markdown: headings, lists and paragraphs; whatever it says stays plain text."""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from services.worker.domain import ImageSummary
from services.worker.page_text import (
    Line,
    LineKind,
    bullet_text,
    is_chinese,
    join_lines,
    read_lines,
)

# What would be emphasis, code, a link, an image or HTML.
_INLINE = re.compile(r"([\\`*_~\[\]<>])")
# What would be a heading, a list or a rule at the beginning of a paragraph.
_OPENING = re.compile(r"^([#+=~|-]|\d+(?=[.)]))")
_NUMBER = re.compile(r"\W*(\d{1,4})\W*")
_SECTION_NUMBER = re.compile(r"^(\d{1,2}(?:\.\d{1,2})*)\.?\s")
_DEEPEST = 6
# How many blocks at the top and at the bottom may be a head or a foot.
EDGE = 2
# The title of a chapter and that of its first section.
MOST_HEADINGS_IN_A_ROW = 2


def page_markdown(text: str, *, page: int = 1, previous: str = "") -> str:
    """The words of a page; of its head and foot only what the page before has not told already."""
    lines = _sober(read_lines(_without_paper(text, page, previous)))
    return "\n\n".join(_blocks(lines, chinese=is_chinese(text)))


def pictures_markdown(summaries: Iterable[ImageSummary]) -> str:
    """What pictures show, in words."""
    return "\n\n".join(_pictures(summaries))


def plain(text: str) -> str:
    """Words of a page, so that a reader of Markdown sees them as they stand there."""
    return _OPENING.sub(lambda match: _escaped_opening(match[1]), _inline(text))


def _inline(text: str) -> str:
    """The same for words that do not begin a line."""
    return _INLINE.sub(r"\\\1", " ".join(text.split()))


def _without_paper(text: str, page: int, previous: str) -> str:
    """Without heads and feet that repeat or count on from the page before.

    Only whole blocks at the edges, and only where it is certain: words that are left out here are
    lost to everybody.
    """
    blocks = _text_blocks(text)
    before = {line for block in _edges(_text_blocks(previous)) for line in block}
    paper = [
        block
        for block in _edges(blocks)
        if all(_repeats(line, before) or _counts_on(line, page, before) for line in block)
    ]
    if len(paper) == len(blocks):  # there is nothing else on this page
        return text
    return "\n\n".join("\n".join(block) for block in blocks if block not in paper)


def _text_blocks(text: str) -> list[list[str]]:
    blocks = (block.splitlines() for block in re.split(r"\n\s*\n", text))
    cleaned = ([line.strip() for line in block if line.strip()] for block in blocks)
    return [block for block in cleaned if block]


def _edges(blocks: Sequence[list[str]]) -> list[list[str]]:
    return [block for at, block in enumerate(blocks) if at < EDGE or at >= len(blocks) - EDGE]


def _repeats(line: str, before: Collection[str]) -> bool:
    return line in before and not _NUMBER.fullmatch(line)


def _counts_on(line: str, page: int, before: Collection[str]) -> bool:
    """Whether it is the same as on the page before but for the number of the page."""
    alone = _NUMBER.fullmatch(line)
    number = int(alone[1]) if alone else page
    counted, times = re.subn(rf"(?<!\d){number}(?!\d)", str(number - 1), line, count=1)
    return times == 1 and counted in before


def _sober(lines: Iterable[Line]) -> list[Line]:
    """Short lines in a row are the cells of a table or the words of a figure, not headings."""
    told: list[Line] = []
    for is_heading, group in groupby(lines, key=lambda line: line.kind is LineKind.HEADING):
        row = list(group)
        crowded = len(row) > MOST_HEADINGS_IN_A_ROW
        told += (
            _as_prose(line) if is_heading and _doubtful(line, crowded) else line for line in row
        )
    return told


def _doubtful(heading: Line, crowded: bool) -> bool:
    # "There are three rules:" leads to them, it is not above them.
    return not _SECTION_NUMBER.match(heading.text) and (crowded or heading.text[-1] in ":\uff1a")


def _as_prose(line: Line) -> Line:
    return replace(line, kind=LineKind.PROSE)


def _escaped_opening(opening: str) -> str:
    # "1." is a list where "1\\." is not.
    return f"{opening}\\" if opening.isdigit() else f"\\{opening}"


def _blocks(lines: Sequence[Line], *, chinese: bool) -> Iterator[str]:
    for kind, parts in _paragraphs(lines):
        if kind is LineKind.FORMULA:
            yield _code(parts[0])
        elif kind is LineKind.HEADING:
            yield f"{_level(parts[0])} {_inline(parts[0])}"
        elif kind is LineKind.LABEL:
            yield f"**{_inline(parts[0])}**"
        elif kind is LineKind.BULLET:
            yield f"- {plain(join_lines(parts, chinese))}"
        else:
            yield plain(join_lines(parts, chinese))


def _paragraphs(lines: Sequence[Line]) -> Iterator[tuple[LineKind, list[str]]]:
    """Lines that belong together: prose and list items run on to the end of their block."""
    kind, parts = LineKind.PROSE, list[str]()
    for line in lines:
        goes_on = line.kind is LineKind.PROSE and kind in (LineKind.PROSE, LineKind.BULLET)
        if parts and goes_on and not line.opens:
            parts.append(line.text)
            continue
        if parts:
            yield kind, parts
        text = bullet_text(line.text) if line.kind is LineKind.BULLET else line.text
        kind, parts = line.kind, [text]
    if parts:
        yield kind, parts


def _level(heading: str) -> str:
    """By its number: "1" under the title of the document, "1.2" under that."""
    number = _SECTION_NUMBER.match(heading)
    depth = 2 + (number[1].count(".") if number else 0)
    return "#" * min(depth, _DEEPEST)


def _code(formula: str) -> str:
    """A formula as it was set; letters that mean something to Markdown mean nothing in code."""
    return plain(formula) if "`" in formula else f"`{formula}`"


def _pictures(summaries: Iterable[ImageSummary]) -> Iterator[str]:
    for summary in summaries:
        words = " ".join(part for part in (summary.alt_text, summary.ocr_text) if part)
        if summary.shows_content and words:
            yield f"> **{summary.image_type.value.capitalize()}:** {_inline(words)}"
