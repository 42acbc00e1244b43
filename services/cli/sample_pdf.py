"""Writes a small lecture as a PDF by hand, different bytes and words on every run."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

PAGE_WIDTH, PAGE_HEIGHT, MARGIN = 595, 842, 64
TITLE_SIZE, TEXT_SIZE, FOOTER_SIZE, LINE_HEIGHT = 20, 12, 9, 17
CHARACTERS_A_LINE = 82


@dataclass(frozen=True, kw_only=True)
class Slide:
    """One page of the lecture."""

    title: str
    paragraphs: tuple[str, ...]


LECTURE = (
    Slide(
        title="Hash tables",
        paragraphs=(
            "A hash table stores pairs of keys and values so that a value can be found by its key "
            "in constant time on average. A hash function turns the key into a number, and the "
            "number selects one of the buckets of an array.",
            "A good hash function spreads keys evenly over the buckets. If it sends many keys to "
            "the same bucket, the table degrades to a list and every look-up becomes linear.",
            "Hash tables are used in compilers for symbol tables, in databases for joins, and in "
            "caches that must answer within microseconds.",
        ),
    ),
    Slide(
        title="Collisions and the load factor",
        paragraphs=(
            "A collision happens when two different keys fall into the same bucket. Collisions "
            "cannot be avoided: by the birthday paradox, 23 keys in 365 buckets already collide "
            "with a probability of one half.",
            "Chaining keeps a list of entries in each bucket. Open addressing puts the entry into "
            "the next free bucket instead, which is kinder to the processor cache.",
            "The load factor is the number of entries divided by the number of buckets. With "
            "chaining, a successful look-up takes 1 + a/2 steps on average, where a is the load "
            "factor. Therefore a table grows when its load factor passes a limit such as 0.75.",
            "For example, a table with 16 buckets and a limit of 0.75 is doubled when the "
            "thirteenth entry arrives. Resizing moves every entry once, so the cost of an "
            "insertion stays constant when it is averaged over many insertions.",
        ),
    ),
    Slide(
        title="Choosing a table",
        paragraphs=(
            "Consistent hashing places buckets and keys on a circle. When a server joins or "
            "leaves, only the keys next to it move, which is why distributed caches rely on it.",
            "A Bloom filter answers whether a key may be present with a few bits for each key. It "
            "never misses a key that is present, but it may report one that is not.",
            "If keys must be visited in order, a balanced tree is the better choice: a hash table "
            "has no order at all.",
        ),
    ),
)


def lecture_pdf(nonce: str) -> bytes:
    """The lecture; `nonce` is printed on each page, so that nobody has explained it before."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", _page_tree(len(LECTURE)), _font("Helvetica")]
    objects.append(_font("Helvetica-Bold"))
    for number, slide in enumerate(LECTURE, start=1):
        content = _content(slide, footer=f"Handout {nonce}, page {number} of {len(LECTURE)}")
        objects.append(_page(content_id=len(objects) + 2))
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    objects.append(f"<< /Title (Hash tables) /Subject (Handout {nonce}) /Producer (Glossa) >>")
    return _file(objects)


def _page_tree(count: int) -> str:
    kids = " ".join(f"{5 + 2 * index} 0 R" for index in range(count))
    return f"<< /Type /Pages /Count {count} /Kids [{kids}] >>"


def _font(name: str) -> str:
    return f"<< /Type /Font /Subtype /Type1 /BaseFont /{name} /Encoding /WinAnsiEncoding >>"


def _page(content_id: int) -> str:
    return (
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {PAGE_WIDTH} {PAGE_HEIGHT}] "
        f"/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >> /Contents {content_id} 0 R >>"
    )


def _content(slide: Slide, *, footer: str) -> str:
    height = PAGE_HEIGHT - MARGIN - TITLE_SIZE
    lines = [_text("F2", TITLE_SIZE, height, slide.title)]
    height -= 2 * LINE_HEIGHT
    for paragraph in slide.paragraphs:
        for line in textwrap.wrap(paragraph, CHARACTERS_A_LINE):
            lines.append(_text("F1", TEXT_SIZE, height, line))
            height -= LINE_HEIGHT
        height -= LINE_HEIGHT // 2
    lines.append(_text("F1", FOOTER_SIZE, MARGIN // 2, footer))
    return "\n".join(lines)


def _text(font: str, size: int, height: int, text: str) -> str:
    escaped = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT /{font} {size} Tf {MARGIN} {height} Td ({escaped}) Tj ET"


def _file(objects: Sequence[str]) -> bytes:
    """Number the objects, write down where each starts, and finish with the table of those."""
    body = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{content}\nendobj\n".encode("latin-1")
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    size = len(objects) + 1
    body_length = len(body)
    body += f"xref\n0 {size}\n0000000000 65535 f \n{table}".encode()
    body += f"trailer\n<< /Size {size} /Root 1 0 R /Info {size - 1} 0 R >>\n".encode()
    body += f"startxref\n{body_length}\n%%EOF\n".encode()
    return bytes(body)
