"""Jobs, pages, pictures and stickers: what an attempt is made of."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from uuid import UUID

MAX_STICKERS = 12
# A page with a picture and no more words than this is looked at as a whole: a scan has no words,
# or the few of a stamp or a page number.
SCANNED_AT_MOST_WORDS = 5


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


# What the Cache wants made.
PAGE_EXPLANATION = "page_explanation"
DOCUMENT_MARKDOWN = "document_markdown"


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
    """A page to explain, or a document to convert, and for how long it is ours."""

    lease: Lease
    kind: str
    # "shared", or whose alone the result is.
    scope: str
    pdf_hash: str
    page: int
    locale: str
    effective_mode: str
    images_count: int
    model: str
    prompt_version: str
    time_left: timedelta
    # The span that started it, where somebody traces.
    traceparent: str = ""


class ImageType(StrEnum):
    DIAGRAM = "diagram"
    CHART = "chart"
    TABLE = "table"
    FORMULA = "formula"
    PHOTO = "photo"
    SCREENSHOT = "screenshot"
    TEXT = "text"
    # Nothing to explain: an ornament, a logo, a background.
    DECORATIVE = "decorative"
    # Nothing is known of it: the model refused to say, or what it said could not be used.
    UNDESCRIBED = "undescribed"


@dataclass(frozen=True, kw_only=True)
class Image:
    """A picture of a page, or the page as a picture; `digest` is the SHA-256 of its content."""

    digest: str
    media_type: str
    content: bytes


@dataclass(frozen=True, kw_only=True)
class ImageSummary:
    """What a picture shows, in English; depends on nothing but the picture."""

    digest: str
    image_type: ImageType
    ocr_text: str = ""
    alt_text: str = ""

    @property
    def shows_content(self) -> bool:
        return self.image_type not in (ImageType.DECORATIVE, ImageType.UNDESCRIBED)


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """What the Registry has of a page."""

    text: str
    # Their texts in the order of pages; empty where some of it is hidden.
    neighbours: tuple[str, ...] = ()
    has_hidden_text: bool = False
    # Distinct ones, those that only decorate left out.
    images: tuple[Image, ...] = ()
    # The whole page as a picture, where it was asked for.
    render: Image | None = None
    # Of the document.
    total_pages: int = 0

    @property
    def is_scanned(self) -> bool:
        return bool(self.images) and len(self.text.split()) <= SCANNED_AT_MOST_WORDS

    @property
    def is_to_be_seen(self) -> bool:
        """Whether its text is not what its readers see."""
        return self.is_scanned or self.has_hidden_text


@dataclass(frozen=True, kw_only=True)
class Page:
    """What an explainer sees: a page, or one chunk of a long one."""

    page: int
    text: str
    locale: str
    neighbours: tuple[str, ...] = ()
    # Some of the text is not seen by readers, and nobody knows which.
    has_hidden_text: bool = False
    effective_mode: str = "text_only"
    images_count: int = 0
    summaries: tuple[ImageSummary, ...] = ()
    # The page as a reader sees it, where its text is not all of it or not to be trusted. Then this
    # is what gets explained, and the text only tells where quotes stand.
    render: Image | None = None


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
class Result:
    """What an attempt has made: stickers of a page, or a document in Markdown."""

    stickers: tuple[Sticker, ...] = ()
    markdown: str = ""


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
class Description:
    """What a model made of a picture."""

    summary: ImageSummary
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

    def __post_init__(self) -> None:
        # Here it fails one attempt; told to the Cache, it would be refused with all other leases.
        assert 0 <= self.done <= self.total, f"{self.done} of {self.total}"


def numbered(stickers: Iterable[Sticker]) -> tuple[Sticker, ...]:
    return tuple(
        replace(sticker, sticker_id=f"s{number}") for number, sticker in enumerate(stickers, 1)
    )
