"""Puts the text blocks of a page into the order in which a person reads them, columns included."""

from collections.abc import Sequence
from dataclasses import dataclass

NARROWEST_GUTTER = 6.0  # points; LaTeX's default column gap is 10
NARROWEST_COLUMN = 0.18  # of the page width; keeps bullets and line numbers with their lines


@dataclass(frozen=True, kw_only=True)
class Block:
    """A paragraph-like piece of text and where it stands; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float
    text: str


def reading_order(blocks: Sequence[Block], *, page_width: float) -> list[Block]:
    """Bands from top to bottom; inside a run of bands that share a gutter, column by column."""
    ordered: list[Block] = []
    run: list[Block] = []
    for band in bands(blocks):
        if run and not columns(run + band, page_width):
            ordered += read_run(run, page_width)
            run = []
        run += band
    return ordered + read_run(run, page_width)


def read_run(run: list[Block], page_width: float) -> list[Block]:
    """One run: its columns from left to right, or row by row where there are none."""
    split = columns(run, page_width)
    if not split:
        return [block for row in rows(run) for block in sorted(row, key=lambda block: block.left)]
    return [block for column in split for block in reading_order(column, page_width=page_width)]


def rows(run: Sequence[Block]) -> list[list[Block]]:
    """Blocks that begin above the middle of a row's first one stand beside it, as in formulas."""
    found: list[list[Block]] = []
    middle = float("-inf")
    for block in sorted(run, key=lambda block: (block.top, block.left)):
        if block.top >= middle:
            found.append([])
            middle = (block.top + block.bottom) / 2
        found[-1].append(block)
    return found


def bands(blocks: Sequence[Block]) -> list[list[Block]]:
    """Groups of blocks side by side: a horizontal line through each gap touches nothing."""
    found: list[list[Block]] = []
    reach = float("-inf")
    for block in sorted(blocks, key=lambda block: (block.top, block.left)):
        if block.top >= reach - 1.0:  # boxes of neighbouring lines overlap by a hair
            found.append([])
        found[-1].append(block)
        reach = max(reach, block.bottom)
    return found


def columns(blocks: Sequence[Block], page_width: float) -> list[list[Block]]:
    """Two or more columns with an empty gutter between them, or nothing."""
    found: list[list[Block]] = []
    reach = float("-inf")
    for block in sorted(blocks, key=lambda block: block.left):
        if block.left - reach >= NARROWEST_GUTTER:
            found.append([])
        found[-1].append(block)
        reach = max(reach, block.right)
    wide_enough = all(width(column) >= NARROWEST_COLUMN * page_width for column in found)
    return found if len(found) > 1 and wide_enough else []


def width(column: Sequence[Block]) -> float:
    """From the leftmost to the rightmost edge."""
    return max(block.right for block in column) - min(block.left for block in column)
