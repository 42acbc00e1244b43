"""Reads PDFs with MuPDF; only importer of pymupdf, itself imported by the PDF child alone."""

# PyMuPDF is typed in part only.
# mypy: allow-untyped-calls

import base64
import contextlib
import hashlib
import mmap
import os
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple

import pymupdf

from services.registry.page_identity import Picture, fingerprint, has_hidden_text, painted
from services.registry.reading_order import Block, reading_order

mupdf = pymupdf.mupdf
pymupdf.TOOLS.mupdf_display_errors(False)
pymupdf.TOOLS.mupdf_display_warnings(False)

HEADER_WITHIN_BYTES = 1024
SCANNED_AT_MOST_WORDS = 5  # a scan often carries a stamp or a page number
SCANNED_COVERS = 0.6  # of the page, by one image
MOST_IMAGES = 20
DECORATIVE_POINTS = 18
DECORATIVE_COVERS = 0.01  # of the page
LONGEST_SIDE_PIXELS = 2000
COMPARED_SIDE_PIXELS = 1024
MOST_PART_BYTES = 3 << 20  # one part travels in one gRPC message of at most 4 MiB
MOST_TEXT_CHARACTERS = 1 << 20
TEXT_FLAGS = pymupdf.TEXT_MEDIABOX_CLIP | pymupdf.TEXT_PRESERVE_IMAGES
EVERYWHERE = (-(1 << 31), -(1 << 31), 0x7FFFFF80, 0x7FFFFF80)  # MuPDF's infinite rectangle


class Refused(Exception):
    """This PDF or page is not read, for a reason of the contract."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Drawn(NamedTuple):
    """An image as it stands on a page."""

    box: Any
    image: Any

    @property
    def is_stencil(self) -> bool:
        """Painted through a mask, so that its own pixels are not what a reader sees."""
        return bool(self.image.imagemask() or self.image.mask().m_internal)


def reason_of(error: Exception) -> str:
    """What an error of MuPDF means to an uploader; it reports a failed malloc in its text only."""
    text = str(error).lower()
    too_much = any(sign in text for sign in ("malloc", "calloc", "realloc", "out of memory"))
    return "PDF_TOO_COMPLEX" if too_much else "PDF_UNREADABLE"


def rehearse() -> None:
    """Do everything once on a page of our own: PyMuPDF loads parts of itself on first use."""
    document = pymupdf.open()
    sheet = document.new_page()
    sheet.insert_text((50, 50), "rehearsal")
    dot = pymupdf.Pixmap(pymupdf.csRGB, 1, 1, bytes(3), False)
    for number, kind in enumerate(("png", "jpeg")):
        sheet.insert_image(pymupdf.Rect(0, 0, 9 + number, 9), stream=dot.tobytes(kind))
    describe(document, 1)
    read(document, 1, neighbours=1, include_images=True, include_render=True)
    with contextlib.suppress(pymupdf.FileDataError):
        pymupdf.open(stream=b"%PDF-", filetype="pdf")
    forget()


def forget() -> None:
    """Drop what MuPDF cached, so that no task pays for another's memory."""
    pymupdf.TOOLS.store_shrink(100)


@contextlib.contextmanager
def opened(descriptor: int) -> Iterator[pymupdf.Document]:
    """The PDF behind a descriptor. MuPDF also opens HTML and images: what it opened is checked.

    Mapped, because a confined child cannot open anything, and because it is never all needed.
    """
    if os.fstat(descriptor).st_size == 0:
        raise Refused("PDF_EMPTY")
    content = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    if b"%PDF-" not in bytes(content[:HEADER_WITHIN_BYTES]):
        raise Refused("NOT_A_PDF")
    with pymupdf.open(stream=content, filetype="pdf") as document:
        if not document.is_pdf:
            raise Refused("NOT_A_PDF")
        if document.needs_pass:
            raise Refused("PDF_ENCRYPTED")
        yield document


def inspect(document: pymupdf.Document, *, most_pages: int) -> dict[str, Any]:
    """Whether the document can be read at all, and how many pages it says it has."""
    total_pages = document.page_count
    if total_pages < 1:
        raise Refused("PDF_UNREADABLE" if document.is_repaired else "PDF_EMPTY")
    if total_pages > most_pages:
        raise Refused("PDF_TOO_COMPLEX")
    document.load_page(0)
    return {"total_pages": total_pages}


def describe(document: pymupdf.Document, page: int) -> dict[str, Any]:
    """What is on a page (1-based)."""
    sheet = document.load_page(page - 1)
    layout = sheet.get_textpage(flags=TEXT_FLAGS)
    drawn = drawn_images(sheet, layout)
    trace, drawings = sheet.get_texttrace(), sheet.get_cdrawings()
    word_count = len(layout.extractText().split())
    covered = max((abs(one.box & sheet.rect) for one in drawn), default=0.0)
    mostly_picture = covered >= SCANNED_COVERS * abs(sheet.rect)
    # Traces of turned pages are not turned: what is on the page is decided generously.
    left, top, side = sheet.rect.x0, sheet.rect.y0, max(sheet.rect.width, sheet.rect.height)
    area = (left, top, left + side, top + side)
    pictures = [Picture(picture_digest(one.image), list(one.box)) for one in drawn]
    return {
        "word_count": word_count,
        "images_count": len(drawn),
        "is_scanned": word_count <= SCANNED_AT_MOST_WORDS and mostly_picture,
        "has_hidden_text": has_hidden_text(
            trace,
            page=area,
            backgrounds=[*painted(drawings), *image_boxes(layout)],
            scanned=mostly_picture,
        ),
        "fingerprint": fingerprint(trace, drawings, pictures, area),
    }


def picture_digest(image: Any) -> str:
    """Identity of an image's decoded pixels, its mask included, whatever the compression."""
    digest = hashlib.sha256(f"{image.w()}x{image.h()}".encode())
    layers = [image, image.mask()] if image.mask().m_internal else [image]
    for layer in layers:
        decoded = pixels(
            layer, COMPARED_SIDE_PIXELS
        )  # kept: the view below does not own its memory
        digest.update(decoded.samples_mv)
    return digest.hexdigest()


def image_blocks(layout: pymupdf.TextPage) -> list[Any]:
    """Everything MuPDF takes for an image, shadings too."""
    return [b for b in layout.this if b.m_internal.type == mupdf.FZ_STEXT_BLOCK_IMAGE]


def image_boxes(layout: pymupdf.TextPage) -> list[Any]:
    """Where images and shadings stand."""
    return [pymupdf.Rect(pymupdf.JM_py_from_rect(b.m_internal.bbox)) for b in image_blocks(layout)]


def drawn_images(sheet: pymupdf.Page, layout: pymupdf.TextPage) -> list[Drawn]:
    """Images drawn on the visible page, inline ones too; shadings are images without a source."""
    images = [b.i_image() for b in image_blocks(layout)]
    drawn = map(Drawn, image_boxes(layout), images)
    return [
        one
        for one in drawn
        if one.box.intersects(sheet.rect)
        and mupdf.fz_compressed_image_buffer(one.image).m_internal is not None
    ]


def pixels(image: Any, longest_side: int) -> pymupdf.Pixmap:
    """Decoded pixels, halved until the longest side is near the given length."""
    scale = min(1.0, longest_side / max(image.w(), image.h(), 1))
    size = mupdf.FzMatrix(image.w() * scale, 0, 0, image.h() * scale, 0, 0)
    decoded, _, _ = mupdf.fz_get_pixmap_from_image(image, mupdf.FzIrect(*EVERYWHERE), size)
    return pymupdf.Pixmap("raw", decoded)


def read(
    document: pymupdf.Document,
    page: int,
    *,
    neighbours: int,
    include_images: bool,
    include_render: bool,
) -> dict[str, Any]:
    """Text, context and pictures of a page (1-based)."""
    sheet = document.load_page(page - 1)
    around = [n for n in range(page - neighbours, page + neighbours + 1) if n != page]
    inside = [n for n in around if 1 <= n <= document.page_count]
    seen = render(sheet) if include_render else None
    return {
        "text": page_text(sheet),
        "neighbours": [[n, neighbour_text(document, n)] for n in inside],
        "images": page_images(sheet) if include_images else [],
        "render": encoded(seen.png) if seen else None,
        "is_blank": seen is not None and seen.is_blank,
    }


def neighbour_text(document: pymupdf.Document, page: int) -> str:
    """Context is a courtesy: a broken neighbour does not spoil the page itself."""
    try:
        return page_text(document.load_page(page - 1))
    except (RuntimeError, ValueError):
        return ""


def page_text(sheet: pymupdf.Page) -> str:
    """The page's text in reading order, blocks separated by blank lines, safe to store and send."""
    layout = sheet.get_textpage(flags=pymupdf.TEXT_MEDIABOX_CLIP)
    blocks = [
        Block(left=b[0], top=b[1], right=b[2], bottom=b[3], text=b[4])
        for b in layout.extractBLOCKS()
    ]
    ordered = reading_order(blocks, page_width=sheet.rect.width)
    texts = (cleaned(block.text) for block in ordered)
    return "\n\n".join(text for text in texts if text)[:MOST_TEXT_CHARACTERS]


def cleaned(text: str) -> str:
    """Without NUL, lone surrogates and control characters; lines without trailing space."""
    kept = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cs"})
    return "\n".join(line.rstrip() for line in kept.split("\n")).strip()


def page_images(sheet: pymupdf.Page) -> list[dict[str, Any]]:
    """The largest distinct images of the page, in the order in which they are drawn."""
    drawn = drawn_images(sheet, sheet.get_textpage(flags=TEXT_FLAGS))
    by_size = sorted(range(len(drawn)), key=lambda place: -abs(drawn[place].box & sheet.rect))
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    for place in by_size[: 2 * MOST_IMAGES]:  # a picture may be drawn often: some tries are spent
        if len(found) == MOST_IMAGES:
            break
        with contextlib.suppress(RuntimeError, ValueError):  # one broken image spoils nothing else
            picture = portrayed(sheet, drawn[place])
            found.setdefault(picture["digest"], (place, picture))
    return [picture for _, picture in sorted(found.values(), key=lambda one: one[0])]


def portrayed(sheet: pymupdf.Page, one: Drawn) -> dict[str, Any]:
    """An image as a reader sees it, newly encoded: nothing of the uploaded stream is passed on."""
    picture = cut_out(sheet, one.box) if one.is_stencil else pixels(one.image, LONGEST_SIDE_PIXELS)
    if picture.alpha or picture.colorspace not in (pymupdf.csGRAY, pymupdf.csRGB):
        picture = pymupdf.Pixmap(pymupdf.csRGB, pymupdf.Pixmap(picture, 0))
    content, media_type = compressed(picture, photo=is_photo(one.image))
    return {
        "digest": hashlib.sha256(content).hexdigest(),
        "media_type": media_type,
        "content": encoded(content),
        "width_pixels": picture.width,
        "height_pixels": picture.height,
        "is_decorative": is_decorative(one.box & sheet.rect, sheet.rect),
    }


def is_decorative(box: pymupdf.Rect, page: pymupdf.Rect) -> bool:
    """Bullets, rules and logos: too small on the page to show anything worth explaining."""
    thinnest = min(box.width, box.height)
    return bool(thinnest < DECORATIVE_POINTS or abs(box) < DECORATIVE_COVERS * abs(page))


def is_photo(image: Any) -> bool:
    """Whether the uploader's file keeps it as JPEG or JPEG 2000."""
    kind = mupdf.fz_compressed_image_buffer(image).m_internal.params.type
    return kind in (mupdf.FZ_IMAGE_JPEG, mupdf.FZ_IMAGE_JPX)


def compressed(picture: pymupdf.Pixmap, *, photo: bool) -> tuple[bytes, str]:
    """PNG for drawings, JPEG for photos and for what would be too long as PNG."""
    if not photo:
        content = picture.tobytes("png")
        if len(content) <= MOST_PART_BYTES:
            return content, "image/png"
    content = picture.tobytes("jpeg", jpg_quality=85)
    while len(content) > MOST_PART_BYTES:
        picture.shrink(1)
        content = picture.tobytes("jpeg", jpg_quality=85)
    return content, "image/jpeg"


def cut_out(sheet: pymupdf.Page, box: pymupdf.Rect) -> pymupdf.Pixmap:
    """The part of the rendered page under a box, at twice the printed size."""
    visible = box & sheet.rect
    zoom = min(2.0, LONGEST_SIDE_PIXELS / max(visible.width, visible.height, 1.0))
    return sheet.get_pixmap(matrix=pymupdf.Matrix(zoom, zoom), clip=visible, alpha=False)


class Render(NamedTuple):
    """A page as its readers see it."""

    png: bytes
    is_blank: bool


def render(sheet: pymupdf.Page) -> Render:
    """The whole page as PNG, at most 2000 pixels long, less when it would not fit a message."""
    zoom = LONGEST_SIDE_PIXELS / max(sheet.rect.width, sheet.rect.height, 1.0)
    seen = sheet.get_pixmap(matrix=pymupdf.Matrix(zoom, zoom), alpha=False)
    content, is_blank = seen.tobytes("png"), has_one_colour(seen)
    while len(content) > MOST_PART_BYTES:
        zoom *= 0.7
        content = sheet.get_pixmap(matrix=pymupdf.Matrix(zoom, zoom), alpha=False).tobytes("png")
    return Render(content, is_blank)


def has_one_colour(seen: pymupdf.Pixmap) -> bool:
    """As `is_unicolor` says, which takes seconds."""
    samples: bytes = seen.samples
    pixels_count: int = seen.width * seen.height
    return samples == samples[: seen.n] * pixels_count


def encoded(content: bytes) -> str:
    """Bytes as JSON can carry them."""
    return base64.b64encode(content).decode()
