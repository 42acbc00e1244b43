"""The same page is recognised in another file; another page is not, however much alike."""

# PyMuPDF is typed in part only.
# mypy: allow-untyped-calls

import io
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from itertools import combinations
from typing import Any

import pikepdf
import pymupdf
import pytest

from services.registry.domain import PageMetadata
from services.registry.page_identity import UNKNOWN, letters
from services.registry.sandbox import PdfSandbox, SandboxLimits, open_sandbox
from tests.registry import pdfs
from tests.registry.test_sandbox import handed_over

FORMULAS = "Energy E = mc2 and the quadratic x1 + x2 of a page with the letter \ufb01ne print."


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[PdfSandbox]:
    async with open_sandbox(SandboxLimits(children=1)) as sandbox:
        yield sandbox


async def looked_at(sandbox: PdfSandbox, content: bytes) -> list[PageMetadata]:
    """All pages of a document."""
    with pymupdf.open(stream=content) as document:
        pages = range(1, document.page_count + 1)
    with handed_over(content) as file:
        seen = await sandbox.describe(file, pages)
    found = [one for one in seen.values() if isinstance(one, PageMetadata)]
    assert len(found) == len(pages)
    return found


async def fingerprints(sandbox: PdfSandbox, content: bytes) -> list[str]:
    return [page.fingerprint for page in await looked_at(sandbox, content)]


def lecture() -> bytes:
    """Text, formulas, a raster picture, a chart and coloured boxes over five pages."""
    document = pymupdf.open()
    for number in range(5):
        page = document.new_page()
        page.insert_textbox((50, 50, 545, 300), f"Lecture page {number}. {FORMULAS}")
        page.insert_text((50, 320), "x", fontsize=12)
        page.insert_text((57, 316), "2", fontsize=7)
        chart(page, heights=(30, 60 + number, 90))
        if number % 2:
            box = pymupdf.Rect(300, 600, 400, 700)
            page.insert_image(box, stream=pdfs.picture(number).tobytes("png"))
    return bytes(document.tobytes())


def chart(page: pymupdf.Page, heights: tuple[float, ...]) -> None:
    """Bars and a curve."""
    for place, height in enumerate(heights):
        left = 60 + 40 * place
        page.draw_rect((left, 560 - height, left + 30, 560), fill=(0.2, 0.4, 0.8))
    page.draw_bezier((60, 500), (90, 400), (150, 500), (200, 420), color=(1, 0, 0))


def by_qpdf(content: bytes, **saving: object) -> bytes:
    """Rewritten by libqpdf."""
    written = io.BytesIO()
    with pikepdf.open(io.BytesIO(content)) as document:
        document.save(written, **saving)  # type: ignore[arg-type]
    return written.getvalue()


def by_mupdf(content: bytes) -> bytes:
    """Rewritten by MuPDF, content streams cleaned, as mutool clean does."""
    with pymupdf.open(stream=content) as document:
        return bytes(document.tobytes(garbage=4, clean=True, deflate=True, use_objstms=1))


def by_ghostscript(content: bytes) -> bytes:
    """Printed anew; there is no such thing to install with pip."""
    program = shutil.which("gs")
    if program is None:
        pytest.skip("Ghostscript is not installed (Debian package ghostscript)")
    command = [program, "-q", "-sDEVICE=pdfwrite", "-o", "-", "-"]
    return subprocess.run(command, input=content, capture_output=True, check=True).stdout


REWRITERS: dict[str, Callable[[bytes], bytes]] = {
    "qpdf": by_qpdf,
    "qpdf, linearised": lambda content: by_qpdf(content, linearize=True),
    "qpdf, object streams": lambda content: by_qpdf(
        content,
        object_stream_mode=pikepdf.ObjectStreamMode.generate,
        recompress_flate=True,
        normalize_content=True,
    ),
    "mutool": by_mupdf,
    "ghostscript": by_ghostscript,
}


@pytest.mark.parametrize("rewriter", REWRITERS)
async def test_a_rewritten_file_has_the_same_pages(sandbox: PdfSandbox, rewriter: str) -> None:
    original = lecture()
    rewritten = REWRITERS[rewriter](original)
    assert rewritten != original
    assert await fingerprints(sandbox, rewritten) == await fingerprints(sandbox, original)


async def test_trimmed_and_merged_files_have_the_pages_they_were_made_of(
    sandbox: PdfSandbox,
) -> None:
    original, cover = lecture(), pdfs.text_pdf("A cover page.")
    pages = await fingerprints(sandbox, original)
    with pymupdf.open(stream=original) as document:
        document.select([1, 3])
        trimmed = bytes(document.tobytes(garbage=4))
    assert await fingerprints(sandbox, trimmed) == [pages[1], pages[3]]
    merged = await fingerprints(sandbox, pdfs.joined(cover, original))
    assert merged[1:] == pages
    assert len(set(merged)) == 6


def variation(**changes: object) -> bytes:
    """One page like all others of its kind, but for one thing."""
    document = pymupdf.open()
    page = document.new_page()
    page.insert_text((50, 50), str(changes.get("text", "The figure below shows a heap.")))
    raised = changes.get("raised", 0)
    page.insert_text((50, 80), "x", fontsize=12)
    page.insert_text((57, 80 - float(str(raised))), "2", fontsize=8)
    heights = changes.get("heights", (30, 60, 90))
    assert isinstance(heights, tuple)
    chart(page, heights)
    if "extra" in changes:
        changes["extra"](page)  # type: ignore[operator]
    seed, place = changes.get("picture", 1), changes.get("place", 300)
    assert isinstance(seed, int)
    assert isinstance(place, int)
    image = pdfs.picture(seed)
    if changes.get("pixel"):
        image.set_pixel(3, 3, (0, 0, 0))
    page.insert_image(pymupdf.Rect(place, 600, place + 100, 700), stream=image.tobytes("png"))
    return bytes(document.tobytes())


NEAR_IDENTICAL: dict[str, Callable[[], bytes]] = {
    "as it is": variation,
    "a letter more": lambda: variation(text="The figures below shows a heap."),
    "another digit": lambda: variation(text="The figure below shows 1 heap."),
    "a capital letter": lambda: variation(text="The figure below shows a Heap."),
    "a sign": lambda: variation(text="The figure below shows -a heap."),
    "words in another order": lambda: variation(text="The figure below shows heap a."),
    "a superscript": lambda: variation(raised=4),
    "a subscript": lambda: variation(raised=-3),
    "a superscript character": lambda: variation(text="The figure below shows a heap\u00b2."),
    "a bar two points higher": lambda: variation(heights=(30, 62, 90)),
    "bars in another order": lambda: variation(heights=(60, 30, 90)),
    "a bar less": lambda: variation(heights=(30, 60)),
    "a line across": lambda: variation(extra=lambda page: page.draw_line((60, 470), (200, 560))),
    "a dashed box elsewhere": lambda: variation(
        extra=lambda page: page.draw_rect((300, 300, 340, 340))
    ),
    "the same box in red": lambda: variation(
        extra=lambda page: page.draw_rect((300, 300, 340, 340), color=(1, 0, 0))
    ),
    "the same box, filled": lambda: variation(
        extra=lambda page: page.draw_rect((300, 300, 340, 340), fill=(0, 1, 0))
    ),
    "a curve with another bend": lambda: variation(
        extra=lambda page: page.draw_bezier((60, 500), (90, 405), (150, 500), (200, 420))
    ),
    "a curve with that bend turned": lambda: variation(
        extra=lambda page: page.draw_bezier((60, 500), (90, 500), (150, 405), (200, 420))
    ),
    "another picture": lambda: variation(picture=2),
    "one pixel": lambda: variation(pixel=True),
    "the picture elsewhere": lambda: variation(place=400),
}


async def test_near_identical_pages_are_all_told_apart(sandbox: PdfSandbox) -> None:
    found = {
        name: (await fingerprints(sandbox, make()))[0] for name, make in NEAR_IDENTICAL.items()
    }
    same = [pair for pair in combinations(found, 2) if found[pair[0]] == found[pair[1]]]
    assert same == []
    assert (await fingerprints(sandbox, variation()))[0] == found["as it is"]


LABELLED: dict[str, list[tuple[str, int, int]]] = {
    "as it is": [("stack", 100, 200), ("heap", 300, 200), ("queue", 200, 400)],
    "labels that changed places": [("stack", 300, 200), ("heap", 100, 200), ("queue", 200, 400)],
    "a label that went below": [("stack", 100, 200), ("heap", 300, 430), ("queue", 200, 400)],
    "a label elsewhere on its line": [("stack", 100, 200), ("heap", 330, 200), ("queue", 200, 400)],
    "letters that read otherwise": [("n", 107, 200), ("o", 100, 200), ("queue", 200, 400)],
    "letters that read as written": [("n", 100, 200), ("o", 107, 200), ("queue", 200, 400)],
}


async def test_the_same_words_in_other_places_are_another_page(sandbox: PdfSandbox) -> None:
    """All are written in the same order; a model reads them in the order of their places."""
    found = {}
    for name, labels in LABELLED.items():
        document = pymupdf.open()
        page = document.new_page()
        for label, x, y in labels:
            page.insert_text((x, y), label)
        [found[name]] = await fingerprints(sandbox, bytes(document.tobytes()))
    assert len(set(found.values())) == len(LABELLED)


def painted(content: str) -> bytes:
    """A page with these painting operators under a line of text."""
    document = pymupdf.open()
    page = document.new_page()
    page.insert_text((50, 50), "The figure below shows a heap.")
    [drawing] = page.get_contents()
    document.update_stream(drawing, document.xref_stream(drawing) + content.encode())
    return bytes(document.tobytes())


RED_AND_BLUE = " 1 0 0 RG 0 0 1 rg "

SAME_LOOKS = {
    "a rectangle drawn by lines": (
        "100 100 80 40 re S",
        "100 100 m 180 100 l 180 140 l 100 140 l 100 100 l S",
    ),
    "from another corner, the other way round": (
        "100 100 80 40 re f",
        "180 140 m 180 100 l 100 100 l 100 140 l h f",
    ),
    "begun in the middle of a side": (
        "100 100 80 40 re f",
        "140 100 m 180 100 l 180 140 l 100 140 l 100 100 l h f",
    ),
    "filled without being closed": (
        "100 100 m 180 100 l 150 160 l h f",
        "100 100 m 180 100 l 150 160 l f",
    ),
    "a line in pieces": (
        "100 100 m 180 100 l 180 140 l S",
        "100 100 m 120 100 l 150 100 l 180 100 l 180 140 l S",
    ),
    "a point nearly twice": (
        "100 100 m 180 100 l 150 160 l h f",
        "100 100 m 180 100 l 180.003 100.001 l 150 160 l h f",
    ),
    "fill and stroke in two steps": (
        "100 100 80 40 re B",
        "100 100 80 40 re f 100 100 m 180 100 l 180 140 l 100 140 l 100 100 l S",
    ),
    "rounded to three decimals": (
        "200.8627 100 m 250.8624 140 l S",
        "200.863 100 m 250.862 140 l S",
    ),
}

DIFFERENT_LOOKS = {
    "a hole": (
        "100 100 m 180 100 l 180 140 l 100 140 l h 120 110 m 160 110 l 160 130 l 120 130 l h f",
        "100 100 m 180 100 l 180 140 l 100 140 l h 120 110 m 120 130 l 160 130 l 160 110 l h f",
    ),
    "a hole by the other rule": (
        "100 100 80 40 re 120 110 40 20 re f",
        "100 100 80 40 re 120 110 40 20 re f*",
    ),
    "a star with a hole": (
        "100 100 m 130 180 l 160 100 l 90 150 l 170 150 l h f",
        "100 100 m 130 180 l 160 100 l 90 150 l 170 150 l h f*",
    ),
    "a dashed line": ("100 100 m 180 140 l S", "[4 2] 0 d 100 100 m 180 140 l S"),
    "an angle and a triangle": (
        "100 100 m 180 100 l 150 160 l S",
        "100 100 m 180 100 l 150 160 l s",
    ),
    "a line there and back, further": (
        "100 100 m 180 100 l 140 100 l S",
        "100 100 m 140 100 l 180 100 l S",
    ),
    "a stroke under a fill": (
        "100 100 80 40 re B",
        "100 100 80 40 re S 100 100 80 40 re f",
    ),
    "corners in another order": (
        "100 100 m 180 100 l 180 140 l 100 140 l h S",
        "100 100 m 180 140 l 180 100 l 100 140 l h S",
    ),
}


async def heap(sandbox: PdfSandbox, drawing: str) -> str:
    [seen] = await fingerprints(sandbox, painted(RED_AND_BLUE + drawing))
    return seen


@pytest.mark.parametrize("how", SAME_LOOKS)
async def test_a_drawing_may_be_written_in_another_way(sandbox: PdfSandbox, how: str) -> None:
    one, other = SAME_LOOKS[how]
    assert await heap(sandbox, one) == await heap(sandbox, other)
    assert await heap(sandbox, one) != await heap(sandbox, "")


@pytest.mark.parametrize("how", DIFFERENT_LOOKS)
async def test_a_drawing_that_looks_different_is_different(sandbox: PdfSandbox, how: str) -> None:
    one, other = DIFFERENT_LOOKS[how]
    assert await heap(sandbox, one) != await heap(sandbox, other)


def test_accents_standing_alone_have_one_name() -> None:
    named = [[span((code, 1, 5.0))] for code in (0x2C6, 0x5E, 0x2DC, 0x7E)]
    assert [letters(page)[-1] for page in named] == ["^", "^", "~", "~"]


def span(*glyphs: tuple[int, int, float]) -> dict[str, Any]:
    """Letters in a row, as MuPDF traces them: code, number of the glyph, width."""
    written_out = [
        (code, glyph, (10.0 * place, 50.0), (10.0 * place, 40.0, 10.0 * place + width, 50.0))
        for place, (code, glyph, width) in enumerate(glyphs)
    ]
    return {"dir": (1.0, 0.0), "size": 10.0, "chars": written_out}


NAMED = (ord("a"), 1, 5.0)


def test_glyphs_without_names_are_told_apart_by_their_numbers_if_there_is_little_else() -> None:
    pages = [[span((UNKNOWN, one, 5.0), (UNKNOWN, other, 5.0))] for one, other in ((1, 2), (2, 1))]
    assert letters(pages[0]) != letters(pages[1])


def test_a_few_glyphs_without_names_are_told_apart_by_their_width() -> None:
    """Numbers change when a font is cut down to what is used of it; widths do not."""
    one, renumbered, wider = (
        [span(*[NAMED] * 9, (UNKNOWN, glyph, width))]
        for glyph, width in ((1, 5.0), (2, 5.0), (1, 9.0))
    )
    assert letters(one) == letters(renumbered)
    assert letters(one) != letters(wider)


def written(**how: Any) -> bytes:
    """A page with one line that can be seen and one written as told."""
    document = pymupdf.open()
    page = document.new_page()
    page.insert_text((50, 50), "A line that everyone can see.")
    before = how.pop("before", None)
    if before:
        before(page)
    place = how.pop("place", (50, 100))
    page.insert_text(place, "the other line", **how)
    return bytes(document.tobytes())


@pytest.mark.parametrize(
    ("make", "hidden"),
    [
        (written, False),
        (lambda: written(color=(0.5, 0.5, 0.5)), False),
        (lambda: written(color=(1, 1, 1)), True),
        (lambda: written(color=(0.97, 0.99, 0.98)), True),
        (lambda: written(render_mode=3), True),
        (lambda: written(fontsize=0.5), True),
        (lambda: written(place=(50, 2000)), True),
        (lambda: written(fill_opacity=0, stroke_opacity=0), True),
        (
            lambda: written(
                color=(1, 1, 1),
                before=lambda page: page.draw_rect((40, 80, 300, 120), fill=(0, 0, 0.5)),
            ),
            False,
        ),
        (
            lambda: written(
                color=(1, 1, 1),
                before=lambda page: page.insert_image(
                    pymupdf.Rect(40, 80, 300, 120),
                    stream=pdfs.picture(1).tobytes("png"),
                    keep_proportion=False,
                ),
            ),
            False,
        ),
        (
            lambda: written(
                render_mode=3,
                before=lambda page: page.insert_image(
                    page.rect,
                    stream=pdfs.picture(1, width=60, height=85).tobytes("png"),
                    keep_proportion=False,
                ),
            ),
            False,
        ),
    ],
    ids=[
        "plain",
        "grey",
        "white",
        "nearly white",
        "invisible",
        "tiny",
        "off the page",
        "transparent",
        "white on blue",
        "white on a picture",
        "the text of a scan",
    ],
)
async def test_text_nobody_can_see_is_flagged(
    sandbox: PdfSandbox, make: Callable[[], bytes], hidden: bool
) -> None:
    [page] = await looked_at(sandbox, make())
    assert page.has_hidden_text is hidden


async def test_small_pictures_are_decoration_and_repeated_ones_are_told_once(
    sandbox: PdfSandbox,
) -> None:
    document = pymupdf.open()
    page = document.new_page()
    bullet, figure = pdfs.picture(1).tobytes("png"), pdfs.picture(2).tobytes("png")
    for line in range(5):
        page.insert_image(pymupdf.Rect(50, 50 + 30 * line, 60, 60 + 30 * line), stream=bullet)
    page.insert_image(pymupdf.Rect(100, 300, 400, 500), stream=figure)
    with handed_over(bytes(document.tobytes())) as file:
        content = await sandbox.read(file, 1, include_images=True)
    assert [image.is_decorative for image in content.images] == [True, False]
