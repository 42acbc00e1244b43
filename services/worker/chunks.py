"""Cuts a long page into chunks that a model can explain well, the same way every time."""

import hashlib
from dataclasses import dataclass, replace

from services.worker.domain import Page

CHUNK_CHARACTERS = 6_000
# A page beyond this is cut off: its tail would not fit into an attempt's deadline anyway.
MAX_CHUNKS = 16


@dataclass(frozen=True, kw_only=True)
class ChunkPlan:
    """Where a text is cut. It is kept, and good for this very text alone."""

    text_digest: str
    # The position after the last character of each chunk.
    ends: tuple[int, ...]

    def cut(self, page: Page) -> tuple[Page, ...]:
        starts = (0, *self.ends[:-1])
        return tuple(
            replace(page, text=page.text[start:end])
            for start, end in zip(starts, self.ends, strict=True)
        )


def plan_chunks(page: Page) -> ChunkPlan:
    """Cuts at paragraph, line or word boundaries, in this order of preference.

    A page that is looked at is not cut: there is one picture of it. Nor is one with hidden text:
    that is not explained at all by who cannot look.
    """
    start, ends, text = 0, list[int](), page.text
    most = 1 if page.render or page.has_hidden_text else MAX_CHUNKS
    while len(text) - start > CHUNK_CHARACTERS and len(ends) < most - 1:
        start += _cut_position(text[start : start + CHUNK_CHARACTERS])
        ends.append(start)
    ends.append(min(len(text), start + CHUNK_CHARACTERS))
    return ChunkPlan(text_digest=text_digest(text), ends=tuple(ends))


def text_digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _cut_position(text: str) -> int:
    for boundary in ("\n\n", "\n", " "):
        position = text.rfind(boundary, len(text) // 2)
        if position > 0:
            return position + len(boundary)
    return len(text)
