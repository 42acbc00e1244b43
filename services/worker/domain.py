"""Jobs, pages and stickers: what an attempt is made of, and how long pages are cut and merged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

MAX_STICKERS = 12
CHUNK_CHARACTERS = 6_000
# A page beyond this is cut off: its tail would not fit into an attempt's deadline anyway.
MAX_CHUNKS = 16


class StickerKind(StrEnum):
    SUMMARY = "summary"
    TERM = "term"
    CONCEPT = "concept"
    FORMULA = "formula"
    FIGURE = "figure"
    EXAMPLE = "example"


class Status(StrEnum):
    GENERATING = "generating"
    READY = "ready"
    FAILED = "failed"


class Stage(StrEnum):
    QUEUED = "queued"
    READING = "reading"
    ANALYSING_IMAGES = "analysing_images"
    EXPLAINING = "explaining"
    RETRYING = "retrying"
    READY = "ready"
    FAILED = "failed"


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    RETRYING = "retrying"
    LEASE_LOST = "lease_lost"


@dataclass(frozen=True, kw_only=True)
class Lease:
    """The fenced right to one attempt."""

    generation_id: UUID
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """One page to explain, and for how long it is ours."""

    lease: Lease
    pdf_hash: str
    page: int
    locale: str
    effective_mode: str
    images_count: int
    model: str
    prompt_version: str
    time_left: timedelta


@dataclass(frozen=True, kw_only=True)
class Page:
    """What an explainer sees: a page, or one chunk of a long one."""

    page: int
    text: str
    locale: str
    neighbours: tuple[str, ...] = ()
    effective_mode: str = "text_only"
    images_count: int = 0


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle as fractions of the page, from its top left corner."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, kw_only=True)
class Sticker:
    """One explanation note; `quote` is in the page's own spelling, or empty."""

    sticker_id: str
    kind: StickerKind
    title: str
    body_markdown: str
    quote: str = ""
    box: Box | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens a model call took."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
        )


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What an explainer made of a page."""

    stickers: tuple[Sticker, ...]
    model: str
    usage: Usage = Usage()


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One call to a model, whatever came of it: what Quota wants to know."""

    operation_id: UUID
    job: Job
    model: str
    usage: Usage
    duration: timedelta
    # "ok", or why it failed.
    outcome: str


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an attempt or a generation did not work out."""

    reason: str
    message: str
    permanent: bool = False
    retry_after: timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an attempt is within its stage."""

    stage: Stage
    done: int = 0
    total: int = 0
    # Into how many chunks the page was cut, once that is known: it gets more time for more.
    chunks: int = 0


def chunks(page: Page) -> tuple[Page, ...]:
    """Cuts a long page at paragraph, line or word boundaries, in this order of preference."""
    rest, parts = page.text, list[str]()
    while len(rest) > CHUNK_CHARACTERS and len(parts) < MAX_CHUNKS - 1:
        cut = _cut_position(rest[:CHUNK_CHARACTERS])
        parts.append(rest[:cut])
        rest = rest[cut:]
    parts.append(rest[:CHUNK_CHARACTERS])
    return tuple(replace(page, text=part) for part in parts)


def _cut_position(text: str) -> int:
    for boundary in ("\n\n", "\n", " "):
        position = text.rfind(boundary, len(text) // 2)
        if position > 0:
            return position + len(boundary)
    return len(text)


def merge(explanations: Sequence[Explanation]) -> Explanation:
    """One explanation out of those of a page's chunks: one summary, no title twice, renumbered."""
    stickers = [sticker for explanation in explanations for sticker in explanation.stickers]
    summaries = [sticker for sticker in stickers if sticker.kind is StickerKind.SUMMARY]
    others = [sticker for sticker in stickers if sticker.kind is not StickerKind.SUMMARY]
    usage = sum((explanation.usage for explanation in explanations), Usage())
    merged = [*_one_summary(summaries), *_distinct_titles(others)]
    return Explanation(
        stickers=numbered(merged[:MAX_STICKERS]), model=explanations[0].model, usage=usage
    )


def numbered(stickers: Iterable[Sticker]) -> tuple[Sticker, ...]:
    return tuple(
        replace(sticker, sticker_id=f"s{number}") for number, sticker in enumerate(stickers, 1)
    )


def _one_summary(summaries: Sequence[Sticker]) -> list[Sticker]:
    if len(summaries) < 2:
        return list(summaries)
    paragraphs = [part for one in summaries for part in one.body_markdown.split("\n\n")]
    # Of equal paragraphs the last stays, so that a closing remark closes the whole.
    kept = list(dict.fromkeys(reversed(paragraphs)))[::-1]
    return [replace(summaries[0], body_markdown="\n\n".join(kept))]


def _distinct_titles(stickers: Iterable[Sticker]) -> list[Sticker]:
    seen: dict[tuple[StickerKind, str], Sticker] = {}
    for sticker in stickers:
        seen.setdefault((sticker.kind, sticker.title.casefold()), sticker)
    return list(seen.values())
