"""Tells pages apart: what they say, draw and show, and whether they say what nobody can see.

Works on MuPDF's traces as plain values. A false match would give a reader another page's
explanation, a miss only costs a new one: whatever a reader can see counts, unless rewriting a
file is known to change it.
"""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from services.registry.outlines import outlines

FINGERPRINT_VERSION = "3"

UNKNOWN = 0xFFFD
BLANK = frozenset({0x20, 0xA0, 0xAD})
# Fonts without names for their glyphs: a page that says mostly such says little.
MOST_UNKNOWN = 0.2
# Ligatures and accents standing alone: the same ink, which writers name in two ways.
ONE_NAME = str.maketrans(
    {
        **{0xFB00: "ff", 0xFB01: "fi", 0xFB02: "fl", 0xFB03: "ffi", 0xFB04: "ffl", 0xFB05: "st"},
        **{0x02C6: "^", 0x02DC: "~"},
    }
)
# Of the letter size; what lies between is raised or lowered, what lies beyond is another line.
RAISED, NEXT_LINE = 0.1, 0.9
# Of the letter size; between them writing goes on, wide letters and gaps between words included.
BEHIND, FAR_AHEAD = -0.05, 3.05
# Grids are shifted, so that the round numbers people draw with do not lie on their edges, and by
# half a thousandth more: files are rewritten with three decimals, and no number may change fields.
DRAWING_GRID_POINTS = 1.0
PICTURE_GRID_POINTS = TEXT_GRID_POINTS = 4.0
GRID_SHIFT = 0.1375

INVISIBLE = 3  # text rendering mode
TINY_POINTS = 1.0
WHITE = 0.95
OPAQUE = 0.05

Box = Sequence[float]
# Where a letter stands, and its size.
Spot = tuple[float, float, float]
Trace = Sequence[dict[str, Any]]


class Picture(NamedTuple):
    """An image on a page: its pixels and where it stands."""

    digest: str
    box: Box


def fingerprint(trace: Trace, drawings: Trace, pictures: Iterable[Picture], page: Box) -> str:
    """Equal for the same text, lines and pictures, however the file around them was written."""
    digest = hashlib.sha256(letters(trace).encode("utf-8", "replace"))
    for drawing in drawings:
        if overlap(drawing["rect"], page):
            for told in strokes(drawing):
                digest.update(repr(told).encode())
    for picture in sorted(pictures):
        place = [grid(edge, PICTURE_GRID_POINTS) for edge in picture.box]
        digest.update(f"\0{picture.digest}{place}".encode())
    return f"{FINGERPRINT_VERSION}:{digest.hexdigest()}"


def letters(trace: Trace) -> str:
    """The text in the order it is written, with marks where it is raised or lowered or jumps.

    White space is how a writer moves about and does not count; x² and x₂ are not x2.
    """
    strict = unknown_share(trace) > MOST_UNKNOWN
    text = "".join(marked(trace, strict=strict))
    return unicodedata.normalize("NFC", text).translate(ONE_NAME)


def unknown_share(trace: Trace) -> float:
    """How much of the text has no name."""
    named = [letter[0] != UNKNOWN for span in trace for letter in span["chars"]]
    return 1 - sum(named) / len(named) if named else 0.0


def marked(trace: Trace, *, strict: bool) -> Iterator[str]:
    """Letters and marks; a glyph without a name goes by its width, or strictly by its number."""
    last: Spot | None = None
    for span in trace:
        (right, down), size = span["dir"], span["size"] or 1.0
        for code, glyph, (x, y), box in span["chars"]:
            if code in BLANK:
                continue
            yield moved(last, (x, y, size), right, down)
            last = (x, y, size)
            if code != UNKNOWN:
                yield chr(code)
            else:
                yield f"\3{glyph}" if strict else f"\3{grid((box[2] - box[0]) / size, 0.05)}"


def moved(last: Spot | None, here: Spot, right: float, down: float) -> str:
    """How a letter was come to: going straight on, a little higher or lower, or by a jump.

    Jumps tell where they lead: labels that change places in a figure make another page, and the
    order in which a model reads the letters is not left to whoever arranged them.
    """
    x, y, size = here
    if last is not None:
        unit = max(size, last[2])
        rise = ((last[1] - y) * right + (x - last[0]) * down) / unit
        ahead = ((x - last[0]) * right + (y - last[1]) * down) / unit
        if abs(rise) < NEXT_LINE and BEHIND < ahead < FAR_AHEAD:
            return "" if abs(rise) <= RAISED else "\1" if rise > 0 else "\2"
    return f"\4{grid(x, TEXT_GRID_POINTS)},{grid(y, TEXT_GRID_POINTS)};"


def strokes(drawing: dict[str, Any]) -> Iterator[list[object]]:
    """What is painted, and how; "fs" is a fill and then a stroke."""
    for paint in drawing["type"]:
        filled = paint == "f"
        colour = drawing["fill" if filled else "color"]
        yield [
            paint,
            colour and [grid(part, 0.1) for part in colour],
            drawing["even_odd"] if filled else dashes(drawing["dashes"]),
            outlines(drawing["items"], cell, filled=filled),
        ]


def dashes(pattern: str) -> list[int]:
    """The lengths in "[ 3 2 ] 0"; a line that is not dashed has none."""
    lengths, _, _ = pattern.strip("[ ").partition("]")
    return [grid(float(length), DRAWING_GRID_POINTS) for length in lengths.split()]


def cell(point: tuple[float, float]) -> tuple[int, int]:
    """Where a drawing's point lies, finer than anyone sees."""
    x, y = point
    return grid(x, DRAWING_GRID_POINTS), grid(y, DRAWING_GRID_POINTS)


def grid(value: float, size: float) -> int:
    """Which field of a grid a number falls into."""
    return int(value / size + GRID_SHIFT + (1 << 24)) if abs(value) < 1e9 else 0


def has_hidden_text(trace: Trace, *, page: Box, backgrounds: Sequence[Box], scanned: bool) -> bool:
    """Whether there is text that a machine reads and a person cannot see.

    The invisible text of a scan repeats what its picture shows. White text on something that is
    painted can be seen.
    """
    for span in trace:
        box = span["bbox"]
        if not any(letter[0] not in BLANK for letter in span["chars"]):
            continue
        if (
            (span["type"] == INVISIBLE and not scanned)
            or span["size"] < TINY_POINTS
            or span["opacity"] < OPAQUE
            or not overlap(box, page)
            or (is_white(span["color"]) and not any(inside(box, one) for one in backgrounds))
        ):
            return True
    return False


def painted(drawings: Trace) -> list[Box]:
    """The areas that are filled with something darker than paper."""
    return [one["rect"] for one in drawings if one.get("fill") and not is_white(one["fill"])]


def is_white(colour: Sequence[float]) -> bool:
    """Grey or RGB as near to paper as makes no difference; four numbers are ink instead."""
    if len(colour) == 4:
        return max(colour) <= 1 - WHITE
    return min(colour, default=0.0) >= WHITE


def overlap(box: Box, other: Box) -> bool:
    """Whether two boxes touch; a line has no area and touches all the same."""
    return box[0] <= other[2] and other[0] <= box[2] and box[1] <= other[3] and other[1] <= box[3]


def inside(box: Box, other: Box) -> bool:
    """Whether the middle of a box lies in another."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return other[0] <= x <= other[2] and other[1] <= y <= other[3]
