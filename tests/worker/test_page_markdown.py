"""Pages as Markdown: structure where the page has it, and nothing of the page lost or alive."""

import re

import pytest

from services.worker.domain import ImageSummary, ImageType
from services.worker.page_markdown import page_markdown, pictures_markdown, plain

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
    previous = "6\n\nSomething else.\n\nLecture 4, spring term\n"

    assert page_markdown(PAGE, page=12, previous=previous).split("\n\n") == [
        "### 1.2 Metric spaces",
        "A metric space is a set with a distance. Its points may be anything at all.",
        "The distance obeys three rules:",
        "- it is never negative and zero only for equal points,",
        "- it is symmetric,",
        "- it obeys the triangle inequality.",
        "`d(x, z) = d(x, y) + d(y, z)`",
        "Figure 3: three points in a plane",
    ]


@pytest.mark.parametrize(
    ("page", "previous"),
    [
        # Figures that differ from page to page are not page numbers.
        (
            "Amount due: 250 EUR\n\n42\n\n17\n\nSum of all: 59",
            "Amount due: 310 EUR\n\n42\n\n20\n\nSum of all: 80",
        ),
        # Parts of a series.
        ("Quicksort (2)\n\nSwap both.\n\nGo on.", "Quicksort (1)\n\nChoose one.\n\nGo off."),
        # A line that is on both pages by chance, within a paragraph.
        ("It was so,\nas it is said,\nfor ever.", "as it is said,\n\nand so on."),
        ("Page 3 is blank.", "Page 2 is blank."),
    ],
)
def test_nothing_is_lost_that_may_be_words_of_the_text(page: str, previous: str) -> None:
    written = page_markdown(page, page=3, previous=previous)

    assert " ".join(written.replace("#", "").split()) == " ".join(page.split())


@pytest.mark.parametrize(
    ("head", "before"),
    [
        ("Trees 3", "Trees 2"),
        ("- 14 -", "- 13 -"),
        ("3 / 20", "2 / 20"),
        ("Exam 2026", "Exam 2026"),
    ],
)
def test_heads_and_feet_are_told_once(head: str, before: str) -> None:
    written = page_markdown(
        f"{head}\n\nA leaf falls.", page=3, previous=f"{before}\n\nA tree grows."
    )

    assert written == "A leaf falls."


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
        "~~not struck~~",
        "\\<b>escaped by the page\\</b>",
    ],
)
def test_what_a_page_says_stays_words(hostile: str) -> None:
    written = plain(hostile)

    live = re.sub(r"\\(.)", "", written)
    assert not re.search(r"[<>`*_~\[\]]", live)
    assert not re.match(r"([#+=~|-]|\d+[.)])", written)
    # Taking the escapes away gives the words back.
    assert re.sub(r"\\(.)", r"\1", written) == " ".join(hostile.split())


@pytest.mark.parametrize("opening", ["1.2 ", "Definition 4. ("])
def test_headings_and_labels_are_words_too(opening: str) -> None:
    hostile = f"{opening}<b>*x*</b>{')' if '(' in opening else ''}"

    live = re.sub(r"\\(.)", "", page_markdown(hostile))

    assert not re.search(r"[<>`\[\]]|(?<!\*)\*(?!\*)", live)


def test_pictures_are_told_in_words() -> None:
    chart = ImageSummary(
        digest="a", image_type=ImageType.CHART, ocr_text="x [y]", alt_text="Prices rise."
    )
    ornament = ImageSummary(digest="b", image_type=ImageType.DECORATIVE, alt_text="a line")

    told = pictures_markdown([chart, ornament])

    assert told == "> **Chart:** Prices rise. x \\[y\\]"


def test_an_empty_page_is_empty() -> None:
    assert page_markdown("") == ""
