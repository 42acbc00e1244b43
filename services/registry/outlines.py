"""Reduces drawn paths to what they look like: the same shape is the same, however it was written.

Programs that rewrite files turn rectangles into lines and back, start them at another corner, and
leave out points in the middle of a line. Works on MuPDF's paths as plain values, and on a grid
finer than anyone sees: whole numbers are equal or not, whatever was rounded.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Point = tuple[float, float]
Cell = tuple[int, int]
# Where a line ends, or the two handles of a curve and where it ends.
Step = tuple[Cell, ...]
# Where it starts, then all steps that hang together.
Outline = list[Step]


def outlines(
    items: Iterable[Sequence[Any]], cell: Callable[[Point], Cell], *, filled: bool
) -> list[Outline]:
    """What a path looks like; what is filled is closed, whether it says so or not."""
    found: list[Outline] = []
    end: Point | None = None
    for start, *points in segments(items):
        if start != end:
            found.append([(cell(start),)])
        add(found[-1], tuple(map(cell, points)))
        end = points[-1]
    for outline in found:
        if filled:
            add(outline, outline[0])
    # Of crossing outlines it depends on their directions what is filled.
    return [settled(one, directed=filled and len(found) > 1) for one in found]


def segments(items: Iterable[Sequence[Any]]) -> Iterator[Sequence[Point]]:
    """Lines and curves, each with its start; rectangles and quads are taken apart."""
    for kind, *shape in items:
        if kind == "re":
            (left, top, right, bottom), turn = shape
            box = [(left, bottom), (right, bottom), (right, top), (left, top)]
            yield from around(box if turn > 0 else box[::-1])
        elif kind == "qu":
            upper_left, upper_right, lower_left, lower_right = shape[0]
            yield from around([upper_left, lower_left, lower_right, upper_right])
        else:
            yield shape


def around(corners: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """From corner to corner and back to the first."""
    return zip(corners, [*corners[1:], corners[0]], strict=True)


def add(outline: Outline, step: Step) -> None:
    """Go on; standing still is nothing, and a line that goes on straight is one line."""
    here = outline[-1][-1]
    if all(point == here for point in step):
        return
    if len(outline) > 1 and is_line(step) and is_line(outline[-1]):
        before = outline[-2][-1]
        if goes_on(before, here, step[-1]):
            outline.pop()
    outline.append(step)


def settled(outline: Outline, *, directed: bool) -> Outline:
    """A closed polygon from its first corner on, one way round unless directions matter."""
    if len(outline) < 3 or outline[0] != outline[-1] or not all(map(is_line, outline)):
        return outline
    corners = [step[-1] for step in outline[1:]]
    if goes_on(corners[-2], corners[-1], corners[0]):
        corners.pop()  # it was begun in the middle of a line
    first = corners.index(min(corners))
    one_way = corners[first:] + corners[:first]
    other_way = one_way[:1] + one_way[:0:-1]
    corners = one_way if directed else min(one_way, other_way)
    return [(corner,) for corner in [*corners, corners[0]]]


def is_line(step: Step) -> bool:
    return len(step) == 1


def goes_on(before: Cell, middle: Cell, after: Cell) -> bool:
    """Whether the middle is on an upright or level line from one to the other.

    Slanted lines keep all their points: on a grid they are not straight.
    """
    (x0, y0), (x1, y1), (x2, y2) = before, middle, after
    if x0 == x1 == x2:
        return (y1 - y0) * (y2 - y1) > 0
    return y0 == y1 == y2 and (x1 - x0) * (x2 - x1) > 0
