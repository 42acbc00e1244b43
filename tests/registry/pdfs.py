"""PDFs made on the spot: ordinary ones, and those a stranger with bad intentions would send."""

# PyMuPDF is typed in part only.
# mypy: allow-untyped-calls

import random
import zlib

import pymupdf

PAGE_WIDTH = 595
SENTENCE = "A heap keeps the smallest element at its root."


def text_pdf(*pages: str) -> bytes:
    """One page for each text."""
    document = pymupdf.open()
    for text in pages:
        document.new_page().insert_textbox((50, 50, 545, 800), text)
    return bytes(document.tobytes())


def joined(*contents: bytes) -> bytes:
    """One document with the pages of all."""
    document = pymupdf.open()
    for content in contents:
        document.insert_pdf(pymupdf.open(stream=content))
    return bytes(document.tobytes())


def unique_pdf(seed: object, *, pages: int = 1) -> bytes:
    """A PDF no other test has, so that tests may share a database."""
    return text_pdf(*(f"{SENTENCE} Edition {seed}, page {page}." for page in range(1, pages + 1)))


def picture(seed: int, *, width: int = 40, height: int = 30) -> pymupdf.Pixmap:
    """Noise that differs from seed to seed."""
    noise = random.Random(seed).randbytes(width * height * 3)
    return pymupdf.Pixmap(pymupdf.csRGB, width, height, noise, False)


def picture_pdf(text: str, *pictures: pymupdf.Pixmap, jpeg: bool = False) -> bytes:
    """A page with a line of text and pictures below each other."""
    document = pymupdf.open()
    page = document.new_page()
    page.insert_text((50, 40), text)
    for number, one in enumerate(pictures):
        box = pymupdf.Rect(50, 60 + 110 * number, 150, 160 + 110 * number)
        page.insert_image(box, stream=one.tobytes("jpeg" if jpeg else "png"))
    return bytes(document.tobytes())


def scanned_pdf() -> bytes:
    """A picture of a page, without a text layer."""
    document = pymupdf.open()
    page = document.new_page()
    page.insert_image(page.rect, pixmap=picture(1, width=300, height=420))
    return bytes(document.tobytes(deflate=True))


def inline_image_pdf() -> bytes:
    """An image written into the page's own content, without an object of its own."""
    content = b"q 100 0 0 100 50 50 cm BI /W 2 /H 2 /CS /G /BPC 8 ID \x00\x80\xc0\xff EI Q"
    return raw_pdf(content)


def encrypted_pdf(*, user_password: str, owner_password: str) -> bytes:
    """Locked for reading if the user password is not empty."""
    document = pymupdf.open()
    document.new_page().insert_text((50, 50), SENTENCE)
    aes_256 = pymupdf.mupdf.PDF_ENCRYPT_AES_256
    locked = document.tobytes(encryption=aes_256, user_pw=user_password, owner_pw=owner_password)
    return bytes(locked)


def raw_pdf(content: bytes, *, resources: bytes = b"<< >>", more: tuple[bytes, ...] = ()) -> bytes:
    """One page written by hand; `more` are the objects from number 5 on."""
    objects = (
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources "
        + resources
        + b" >>",
        stream(content),
        *more,
    )
    return assembled(objects)


def assembled(objects: tuple[bytes, ...]) -> bytes:
    """Objects numbered from 1, the first being the catalogue, with a correct table of offsets."""
    body = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, one in enumerate(objects, start=1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, one)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    trailer = b"trailer << /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
    return bytes(body) + head + table + trailer + b"startxref\n%d\n%%%%EOF\n" % len(body)


def stream(content: bytes, entries: bytes = b"") -> bytes:
    """A compressed stream object."""
    packed = zlib.compress(content, 9)
    head = b"<< /Length %d /Filter /FlateDecode %s >>" % (len(packed), entries)
    return head + b"\nstream\n" + packed + b"\nendstream"


def endless_pdf() -> bytes:
    """Forms that draw each other ten times over, twelve deep: a few kB, days of work."""
    depth = 12
    forms = []
    for level in range(depth):
        last = level == depth - 1
        content = b"BT (x) Tj ET" if last else b"/F Do " * 10
        inner = b"<< >>" if last else b"<< /XObject << /F %d 0 R >> >>" % (6 + level)
        forms.append(
            stream(
                content, b"/Type /XObject /Subtype /Form /BBox [0 0 595 842] /Resources " + inner
            )
        )
    return raw_pdf(b"/F Do", resources=b"<< /XObject << /F 5 0 R >> >>", more=tuple(forms))


def text_bomb_pdf(megabytes: int) -> bytes:
    """A few kB that unfold into one enormous line of text."""
    letters = b"a" * (megabytes << 20)
    font = b"<< /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    return raw_pdf(b"BT /F 0.001 Tf 10 10 Td (" + letters + b") Tj ET", resources=font)


def page_tree_pdf(*, kids: int, count: int) -> bytes:
    """A page tree that lists `kids` empty pages and says that it has `count`."""
    listed = b" ".join(b"%d 0 R" % number for number in range(3, 3 + kids))
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] >>"
    return assembled(
        (
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [%s] /Count %d >>" % (listed, count),
            *([page] * kids),
        )
    )


def pageless_pdf() -> bytes:
    """Well-formed, with an empty page tree."""
    return assembled(
        (b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 0 >>")
    )


HTML = b"<html><!-- %PDF-1.7 --><body><h1>Not a PDF</h1></body></html>"
GARBAGE = b"%PDF-1.7\n" + random.Random(7).randbytes(20_000)


def shaded_pdf() -> bytes:
    """A page filled with a colour gradient."""
    gradient = (
        b"<< /Shading << /S << /ShadingType 2 /ColorSpace /DeviceRGB /Coords [0 0 595 0] /Function "
        b"<< /FunctionType 2 /Domain [0 1] /C0 [1 0 0] /C1 [0 0 1] /N 1 >> >> >> >>"
    )
    return raw_pdf(b"/S sh", resources=gradient)
