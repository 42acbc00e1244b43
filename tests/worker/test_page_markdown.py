"""Pages as Markdown: structure where the page has it, and nothing of the page lost or alive."""

import re

import pytest

from services.worker.domain import ImageSummary, ImageType
from services.worker.page_markdown import page_markdown, plain

PAGE = """7

1.2 Metric spaces

A metric space is a set with a dis-
tance. Its points may be any-
thing at all.

The distance obeys three rules:

• it is never negative
and zero only for equal points,
• it is symmetric,
• it obeys the triangle inequality.

d(x, z) = d(x, y) + d(y, z)

Figure 3: three points in a plane

Lecture 4, spring term
"""


def test_a_page_keeps_its_structure() -> None:
    neighbour = "8\n\nSomething else.\n\nLecture 4, spring term\n"

    assert page_markdown(PAGE, [neighbour]).split("\n\n") == [
        "### 1.2 Metric spaces",
        "A metric space is a set with a distance. Its points may be anything at all.",
        "The distance obeys three rules:",
        "- it is never negative and zero only for equal points,",
        "- it is symmetric,",
        "- it obeys the triangle inequality.",
        "`d(x, z) = d(x, y) + d(y, z)`",
        "Figure 3: three points in a plane",
    ]


def test_a_line_that_a_neighbour_repeats_is_kept_within_a_paragraph() -> None:
    page = (
        "First comes this line of the text,\nand this one is on both pages, by chance,\nthen more."
    )
    neighbour = "and this one is on both pages, by chance,\n\nand so on."

    assert "by chance" in page_markdown(page, [neighbour])


def test_a_page_like_its_neighbours_is_not_emptied() -> None:
    assert page_markdown("Page 3 is blank.", ["Page 2 is blank."]) == "Page 3 is blank."


def test_cells_of_a_table_are_no_headings() -> None:
    page = "Country\nCapital\nCurrency\n\nFrance\nParis\nEuro"

    assert page_markdown(page) == "Country Capital Currency\n\nFrance Paris Euro"


@pytest.mark.parametrize(
    "hostile",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[click](javascript:alert(1))",
        "![track](https://example.org/pixel.png)",
        "<https://example.org>",
        "**bold** and `code` and _this_",
        "# Not a heading of ours, for it ends with a full stop.",
        "- not a list of ours",
        "1. not a list of ours",
        "--- and not a rule",
        "| not | a | table |",
        "\\<b>escaped by the page\\</b>",
    ],
)
def test_what_a_page_says_stays_words(hostile: str) -> None:
    written = plain(hostile)

    live = re.sub(r"\\(.)", "", written)
    assert not re.search(r"[<>`*_\[\]]", live)
    assert not re.match(r"([#+=~|-]|\d+[.)])", written)
    # Taking the escapes away gives the words back.
    assert re.sub(r"\\(.)", r"\1", written) == " ".join(hostile.split())


def test_pictures_are_told_in_words() -> None:
    chart = ImageSummary(
        digest="a", image_type=ImageType.CHART, ocr_text="x [y]", alt_text="Prices rise."
    )
    ornament = ImageSummary(digest="b", image_type=ImageType.DECORATIVE, alt_text="a line")

    told = page_markdown("", (), [chart, ornament])

    assert told == "> **Chart:** Prices rise. x \\[y\\]"


def test_an_empty_page_is_empty() -> None:
    assert page_markdown("") == ""
