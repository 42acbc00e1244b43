"""What the Registry talks about: owners, files, documents and what is on their pages."""

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import UUID

LONGEST_FILENAME = 255
UNNAMED = "document.pdf"
CONTEXT_VERSION = "1"


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who a file belongs to; exactly one of the two is set."""

    user_id: str | None = None
    visitor_session_id: str | None = None

    def __post_init__(self) -> None:
        assert (self.user_id is None) != (self.visitor_session_id is None)


@dataclass(frozen=True, kw_only=True)
class Callback:
    """Whom to tell when a file has been processed, and how that goes."""

    url: str
    state: str
    attempts: int = 0
    last_error: str = ""


@dataclass(frozen=True, kw_only=True)
class File:
    """One owner's upload of a document; without a hash while its bytes are still elsewhere."""

    file_id: UUID
    pdf_hash: str | None
    filename: str
    size_bytes: int | None
    created_at: datetime
    forced: bool
    callback: Callback | None = None


@dataclass(frozen=True, kw_only=True)
class Document:
    """PDF content, known once however many hold it."""

    pdf_hash: str
    size_bytes: int
    total_pages: int
    reference_count: int
    # When every page had been looked at.
    processed_at: datetime | None


class Note(Enum):
    """What an upload meant for its owner."""

    CREATED = "created"
    DEDUPLICATED = "deduplicated"
    DUPLICATE_UPLOAD = "duplicate_upload"
    DUPLICATE_DETECTED = "duplicate_detected"
    REPLACED = "replaced"


@dataclass(frozen=True, kw_only=True)
class Holding:
    """A file together with the document it refers to."""

    file: File
    document: Document


@dataclass(frozen=True, kw_only=True)
class Registered:
    """The outcome of an upload."""

    holding: Holding
    note: Note


@dataclass(frozen=True, kw_only=True)
class UploadHeader:
    """What an uploader says before the first byte."""

    owner: Owner
    file_id: UUID | None = None
    filename: str = UNNAMED
    force: bool = False
    replace: bool = False
    callback_url: str | None = None
    expected_pdf_hash: str | None = None


@dataclass(frozen=True, kw_only=True)
class ReceivedPdf:
    """Bytes that were received, hashed and found to be a readable PDF."""

    pdf_hash: str
    size_bytes: int
    total_pages: int


@dataclass(frozen=True, kw_only=True)
class PageMetadata:
    """What is on a page, as far as deciding how to explain it needs."""

    word_count: int
    images_count: int
    is_scanned: bool
    # Text that a machine reads and a person cannot see.
    has_hidden_text: bool
    fingerprint: str

    @property
    def has_images(self) -> bool:
        """Whether the page is explained with its images rather than from its text alone."""
        return self.images_count > 0


@dataclass(frozen=True, kw_only=True)
class BrokenPage:
    """A page that can never be read, by the reason of the error."""

    reason: str


KnownPage = PageMetadata | BrokenPage


@dataclass(frozen=True, kw_only=True)
class KnownPages:
    """What is known of some pages of a document; a page that is missing was never looked at."""

    pdf_hash: str
    total_pages: int
    pages: Mapping[int, KnownPage]


@dataclass(frozen=True, kw_only=True)
class ResolvedPage:
    """A page its owner may see."""

    pdf_hash: str
    page: int
    total_pages: int
    metadata: PageMetadata
    # Of the page with its neighbours; None when one of them cannot be read.
    context_fingerprint: str | None


@dataclass(frozen=True, kw_only=True)
class PageText:
    """The text of one page, in reading order, blocks separated by blank lines."""

    page: int
    text: str
    has_hidden_text: bool = False
    # Of the document; neighbours do not tell.
    total_pages: int = 0
    # Rendered, and of one colour all over.
    is_blank: bool = False


@dataclass(frozen=True, kw_only=True)
class PageImage:
    """An image drawn on a page, re-encoded by us."""

    digest: str
    media_type: str
    content: bytes
    width_pixels: int
    height_pixels: int
    # A bullet, a line or a logo rather than something to explain.
    is_decorative: bool


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """Everything a worker asked about a page."""

    text: PageText
    neighbours: tuple[PageText, ...] = ()
    images: tuple[PageImage, ...] = ()
    render_png: bytes | None = None


class Problem(Enum):
    """What a health check may find."""

    COUNT_DRIFT = "count_drift"
    FILE_WITHOUT_REFERENCE = "file_without_reference"
    REFERENCE_WITHOUT_FILE = "reference_without_file"
    BYTES_MISSING = "bytes_missing"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is not as it must be."""

    problem: Problem
    pdf_hash: str
    file_id: UUID | None = None
    counted: int = 0
    actual: int = 0
    repaired: bool = False


@dataclass(frozen=True, kw_only=True)
class HealthReport:
    """What a health check looked at and found."""

    documents: int
    references: int
    findings: tuple[Finding, ...]


def pages_around(page: int, *, neighbours: int, total_pages: int) -> list[int]:
    """A page and those before and after it that exist, in order."""
    first, last = max(1, page - neighbours), min(total_pages, page + neighbours)
    return list(range(first, last + 1))


def context_fingerprint(
    page: int, *, neighbours: int, total_pages: int, pages: Mapping[int, KnownPage]
) -> str | None:
    """Identity of everything a reader of a page with its neighbours sees, document ends included.

    Two contexts are the same only if every page in them is, in the same order.
    """
    digest = hashlib.sha256()
    for number in range(page - neighbours, page + neighbours + 1):
        if not 1 <= number <= total_pages:
            seen = "no page"
        elif isinstance(known := pages.get(number), PageMetadata):
            seen = known.fingerprint
        else:
            return None
        digest.update(f"{len(seen)}:{seen}".encode())
    return f"{CONTEXT_VERSION}:{digest.hexdigest()}"


def clean_filename(name: str) -> str:
    """The last path part without control or direction-changing characters, ending kept when cut."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    shown = "".join(
        c for c in last if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    )
    shown = shown.strip().strip(".") or UNNAMED
    if len(shown) <= LONGEST_FILENAME:
        return shown
    stem, dot, ending = shown.rpartition(".")
    if not dot or len(ending) > 10:
        return shown[:LONGEST_FILENAME]
    return stem[: LONGEST_FILENAME - len(ending) - 1] + dot + ending
