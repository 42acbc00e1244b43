"""Why the Registry refuses: each error's name, said again as the reason a caller sees.

Errors about a PDF are `PdfError`s; the child process names them by their reason alone.
"""

from typing import ClassVar

from services.runtime.errors import (
    AlreadyExists,
    DependencyDown,
    InvalidInput,
    LimitReached,
    NotFound,
)


class FileNotFound(NotFound):
    """This owner has no such file or document; nobody is told whether someone else has."""

    reason = "FILE_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such file")


class DocumentNotFound(NotFound):
    """No document has this hash."""

    reason = "DOCUMENT_NOT_FOUND"

    def __init__(self) -> None:
        super().__init__("no such document")


class FileIdReused(AlreadyExists):
    """The file_id names another file already."""

    reason = "FILE_ID_REUSED"

    def __init__(self) -> None:
        super().__init__(
            "file_id names another file already; send a new one or none", field="file_id"
        )


class SourceMissing(NotFound):
    """A file known without a hash whose bytes are not where they were said to be."""

    reason = "SOURCE_MISSING"

    def __init__(self) -> None:
        super().__init__(
            "the file's bytes are not in the object store; put them there and backfill again"
        )


class ReferenceIdReused(AlreadyExists):
    """The reference refers to another document already."""

    reason = "REFERENCE_ID_REUSED"

    def __init__(self) -> None:
        super().__init__(
            "this reference refers to another document; remove it first", field="ref_id"
        )


class CallbackRefused(InvalidInput):
    """Nobody is called at this address."""

    reason = "CALLBACK_REFUSED"

    def __init__(self, why: str) -> None:
        super().__init__(f"callback_url {why}", field="header.callback_url")


class DocumentGone(Exception):
    """The document was collected while its bytes came: they must be put again. Never leaves us."""


class FileTooLarge(LimitReached):
    """The upload is longer than this owner may send."""

    reason = "FILE_TOO_LARGE"

    def __init__(self, *, limit_bytes: int) -> None:
        super().__init__(
            f"a file may have at most {limit_bytes} bytes",
            metadata={"limit_bytes": str(limit_bytes)},
        )


class HashMismatch(InvalidInput):
    """The bytes that came are not those that were announced."""

    reason = "HASH_MISMATCH"

    def __init__(self) -> None:
        super().__init__(
            "the bytes received do not have the expected hash", field="header.expected_pdf_hash"
        )


class PageOutOfRange(InvalidInput):
    """The document has fewer pages."""

    reason = "PAGE_OUT_OF_RANGE"

    def __init__(self, *, total_pages: int) -> None:
        super().__init__(
            f"the document has pages 1 to {total_pages}",
            field="page",
            metadata={"total_pages": str(total_pages)},
        )


class PdfReaderLost(DependencyDown):
    """The reader was ended from outside or could not start; the PDF is not to blame."""

    def __init__(self) -> None:
        super().__init__("the PDF reader is not available", reason="PDF_READER_UNAVAILABLE")


class PdfError(InvalidInput):
    """The PDF, or one page of it, cannot be read. `lasting` means that trying again cannot help."""

    says: ClassVar[str]
    lasting: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(self.says)


class NotAPdf(PdfError):
    """Something else, whatever its name says."""

    reason = "NOT_A_PDF"
    says = "this is not a PDF"


class PdfEncrypted(PdfError):
    """Nobody can read it without a password."""

    reason = "PDF_ENCRYPTED"
    says = "the PDF needs a password; remove it and upload again"


class PdfEmpty(PdfError):
    """There is nothing in it."""

    reason = "PDF_EMPTY"
    says = "the PDF has no pages"


class PdfUnreadable(PdfError):
    """It is broken beyond what the reader can mend."""

    reason = "PDF_UNREADABLE"
    says = "the PDF is damaged and cannot be read"


class PdfTooComplex(PdfError):
    """Reading it takes more memory, pages or output than anyone is given."""

    reason = "PDF_TOO_COMPLEX"
    says = "the PDF needs more memory or has more pages than can be read here"


class PdfTimeout(PdfError):
    """Reading it takes more computing time than anyone is given."""

    reason = "PDF_TIMEOUT"
    says = "the PDF takes too long to read"


class PdfStalled(PdfTimeout):
    """The wall clock ran out before the computing time did: the machine may be to blame."""

    lasting = False


BY_REASON: dict[str, type[PdfError]] = {
    error.reason: error
    for error in (NotAPdf, PdfEncrypted, PdfEmpty, PdfUnreadable, PdfTooComplex, PdfTimeout)
}


def pdf_error(reason: str) -> PdfError:
    """The error the reader or the database names; an unknown reason is a damaged PDF."""
    return BY_REASON.get(reason, PdfUnreadable)()
