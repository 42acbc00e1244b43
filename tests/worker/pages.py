"""Pages with pictures on them, and asking for their explanation as a gateway would."""

# PyMuPDF is typed in part only.
# mypy: allow-untyped-calls

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pymupdf
from glossa.cache.v1 import cache_pb2

from tests.registry.pdfs import picture
from tests.suite import Suite
from tests.worker.test_lease_loop import until_ended

READY = cache_pb2.GENERATION_STATUS_READY
FAILED = cache_pb2.GENERATION_STATUS_FAILED
LONG_TEXT = "till ill " * 780  # narrow letters: two chunks fit on a page


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A page to be made: text on top, pictures below, each known by a number."""

    text: str = ""
    pictures: Sequence[int] = ()
    # Too small to be worth explaining.
    ornaments: Sequence[int] = ()
    # One picture that covers all.
    scan: int | None = None
    # Lines and shapes: neither text nor picture.
    drawing: bool = False
    # Written in white.
    hidden: str = ""


def document(*sheets: Sheet) -> bytes:
    """A PDF with these pages; like every PDF made here, one that nobody else has."""
    made = pymupdf.open()
    for sheet in sheets:
        _draw(made.new_page(), sheet)
    made.set_metadata({"title": random.randbytes(8).hex()})
    return bytes(made.tobytes(deflate=True))


def _draw(page: Any, sheet: Sheet) -> None:
    if sheet.pictures:
        left = page.insert_textbox((50, 40, 545, 400), sheet.text, fontsize=6)
    else:
        left = page.insert_textbox((50, 40, 545, 800), sheet.text)
    assert left >= 0, "the text does not fit, and nothing of it was written"
    if sheet.hidden:
        page.insert_text((50, 820), sheet.hidden, color=(1, 1, 1), fontsize=4)
    if sheet.drawing:
        page.draw_circle((300, 400), 80)
        page.draw_line((300, 480), (300, 700))
    for place, number in enumerate(sheet.pictures):
        left, top = 50 + 120 * (place % 4), 420 + 110 * (place // 4)
        page.insert_image(pymupdf.Rect(left, top, left + 110, top + 100), stream=png(number))
    for place, number in enumerate(sheet.ornaments):
        top = 20 + 12 * place
        page.insert_image(pymupdf.Rect(560, top, 570, top + 10), stream=png(number))
    if sheet.scan is not None:
        page.insert_image(page.rect, pixmap=picture(sheet.scan, width=300, height=420))


def png(number: int) -> bytes:
    content: bytes = picture(number).tobytes("png")
    return content


async def explained(
    suite: Suite, content: bytes, *, page: int = 1, user: str = "ada", locale: str = "en"
) -> cache_pb2.Generation:
    """The generation of a page, when it has ended."""
    uploaded = await suite.upload(user, content)
    answer = await suite.explain(user, uploaded.document.pdf_hash, page=page, locale=locale)
    return await until_ended(suite, answer.generation_id)
