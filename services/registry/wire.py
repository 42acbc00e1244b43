"""Protobuf to values and back, for the handler."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from uuid import UUID

from glossa.registry.v1 import registry_pb2 as pb

from services.registry.domain import (
    Callback,
    Document,
    File,
    Finding,
    HealthReport,
    Note,
    Owner,
    PageContent,
    PageMetadata,
    PageText,
    Problem,
    ResolvedPage,
    UploadHeader,
    clean_filename,
)
from services.registry.pdf_answers import Seen
from services.runtime.auth import NotYourUser, current_caller, require_user
from services.runtime.errors import InvalidInput
from services.runtime.validation import parse_identity, parse_pdf_hash, parse_uuid, require

MAX_NEIGHBOURS = 2
MAX_IDS = 1000
MAX_PAGES = 500
MAX_PAGE_SIZE = 1000
DEFAULT_PAGE_SIZE = 100
MAX_FINDINGS = 1000
FILE_REFERENCE = "file"

_REF_TYPE = re.compile(r"[a-z][a-z_]{0,19}")
_NOTES = {
    Note.CREATED: pb.UPLOAD_NOTE_CREATED,
    Note.DEDUPLICATED: pb.UPLOAD_NOTE_DEDUPLICATED,
    Note.DUPLICATE_UPLOAD: pb.UPLOAD_NOTE_DUPLICATE_UPLOAD,
    Note.DUPLICATE_DETECTED: pb.UPLOAD_NOTE_DUPLICATE_DETECTED,
    Note.REPLACED: pb.UPLOAD_NOTE_REPLACED,
}
_CALLBACK_STATES = {
    "waiting": pb.CALLBACK_STATE_WAITING,
    "due": pb.CALLBACK_STATE_DUE,
    "delivered": pb.CALLBACK_STATE_DELIVERED,
    "failed": pb.CALLBACK_STATE_FAILED,
}
_PROBLEMS = {
    Problem.COUNT_DRIFT: pb.HEALTH_PROBLEM_COUNT_DRIFT,
    Problem.FILE_WITHOUT_REFERENCE: pb.HEALTH_PROBLEM_FILE_WITHOUT_REFERENCE,
    Problem.REFERENCE_WITHOUT_FILE: pb.HEALTH_PROBLEM_REFERENCE_WITHOUT_FILE,
    Problem.BYTES_MISSING: pb.HEALTH_PROBLEM_BYTES_MISSING,
}


# Requests about one of an owner's files, or a document they hold.
Targeted = (
    pb.ResolvePageRequest
    | pb.AddReferenceRequest
    | pb.BatchGetPageMetadataRequest
    | pb.DownloadDocumentRequest
)


def parse_header(
    header: pb.UploadDocumentRequest.Header, check_callback: Callable[[str], str]
) -> UploadHeader:
    require(not (header.replace and header.force), "header.replace", "does not go with force")
    if header.replace:
        require(header.file_id != "", "header.file_id", "must name the file to replace")
    expected = header.expected_pdf_hash
    return UploadHeader(
        owner=parse_owner(header.owner, "header.owner"),
        file_id=parse_uuid("header.file_id", header.file_id) if header.file_id else None,
        filename=clean_filename(header.filename),
        force=header.force,
        replace=header.replace,
        callback_url=check_callback(header.callback_url) if header.callback_url else None,
        expected_pdf_hash=parse_pdf_hash("header.expected_pdf_hash", expected)
        if expected
        else None,
    )


def parse_owner(owner: pb.Owner, field: str = "owner") -> Owner:
    """Who is meant, if the caller may act for them; visitors have no tokens of their own."""
    kind = owner.WhichOneof("owner")
    if kind == "user_id":
        user_id = parse_identity(f"{field}.user_id", owner.user_id)
        require_user(user_id, field=f"{field}.user_id")
        return Owner(user_id=user_id)
    require(kind is not None, field, "must name a user or a visitor session")
    visitor = parse_identity(f"{field}.visitor_session_id", owner.visitor_session_id)
    if current_caller().is_user:
        raise NotYourUser("this token acts only for its own user", field=field)
    return Owner(visitor_session_id=visitor)


def parse_target(request: Targeted) -> UUID | str:
    kind = request.WhichOneof("target")
    require(kind is not None, "target", "must be a file_id or a pdf_hash")
    if kind == "file_id":
        return parse_uuid("file_id", request.file_id)
    return parse_pdf_hash("pdf_hash", request.pdf_hash)


def parse_page(page: int, field: str = "page") -> int:
    require(page >= 1, field, "must be 1 or more")
    return page


def parse_pages(pages: Sequence[int]) -> list[int]:
    require(1 <= len(pages) <= MAX_PAGES, "pages", f"must be 1 to {MAX_PAGES} page numbers")
    return [parse_page(page, "pages") for page in pages]


def parse_neighbours(neighbours: int) -> int:
    require(0 <= neighbours <= MAX_NEIGHBOURS, "neighbours", f"must be 0 to {MAX_NEIGHBOURS}")
    return neighbours


def parse_ids(field: str, ids: Sequence[str]) -> list[UUID]:
    require(1 <= len(ids) <= MAX_IDS, field, f"must be 1 to {MAX_IDS} UUIDs")
    return list(dict.fromkeys(parse_uuid(field, one) for one in ids))


def parse_ref_type(ref_type: str) -> str:
    matches = _REF_TYPE.fullmatch(ref_type) is not None
    require(matches, "ref_type", "must be 1 to 20 lower-case letters and underscores")
    is_file = ref_type == FILE_REFERENCE
    require(not is_file, "ref_type", 'must not be "file": upload and delete files instead')
    return ref_type


def parse_page_size(page_size: int) -> int:
    require(0 <= page_size <= MAX_PAGE_SIZE, "page_size", f"must be 1 to {MAX_PAGE_SIZE}")
    return page_size or DEFAULT_PAGE_SIZE


def parse_grace(request: pb.CollectGarbageRequest) -> timedelta | None:
    if not request.HasField("grace"):
        return None
    try:
        grace = request.grace.ToTimedelta()
    except (ValueError, OverflowError):
        raise InvalidInput("grace must be a duration", field="grace") from None
    require(grace >= timedelta(), "grace", "must not be negative")
    return min(grace, timedelta(days=36500))


def render_note(note: Note) -> pb.UploadNote.ValueType:
    return _NOTES[note]


def render_file(file: File) -> pb.File:
    message = pb.File(
        file_id=str(file.file_id),
        pdf_hash=file.pdf_hash or "",
        filename=file.filename,
        size_bytes=file.size_bytes or 0,
        callback=render_callback(file.callback) if file.callback else None,
        forced=file.forced,
    )
    message.created_at.FromDatetime(file.created_at)
    return message


def render_callback(callback: Callback) -> pb.Callback:
    return pb.Callback(
        url=callback.url,
        state=_CALLBACK_STATES[callback.state],
        attempts=callback.attempts,
        last_error=callback.last_error,
    )


def render_document(document: Document) -> pb.Document:
    """Users are not told how many others hold a document, nor what only others can have caused."""
    message = pb.Document(
        pdf_hash=document.pdf_hash,
        total_pages=document.total_pages,
        size_bytes=document.size_bytes,
    )
    if current_caller().is_user:
        return message
    message.reference_count = document.reference_count
    if document.processed_at is not None:
        message.processed_at.FromDatetime(document.processed_at)
    return message


def render_mode(metadata: PageMetadata) -> pb.EffectiveMode.ValueType:
    return pb.EFFECTIVE_MODE_WITH_IMAGES if metadata.has_images else pb.EFFECTIVE_MODE_TEXT_ONLY


def render_resolved(resolved: ResolvedPage) -> pb.ResolvePageResponse:
    metadata = resolved.metadata
    return pb.ResolvePageResponse(
        pdf_hash=resolved.pdf_hash,
        page=resolved.page,
        effective_mode=render_mode(metadata),
        images_count=metadata.images_count,
        word_count=metadata.word_count,
        is_scanned=metadata.is_scanned,
        has_hidden_text=metadata.has_hidden_text,
        fingerprint=metadata.fingerprint,
        total_pages=resolved.total_pages,
        context_fingerprint=resolved.context_fingerprint or "",
    )


def render_page(page: int, seen: Seen) -> pb.PageMetadata:
    if not isinstance(seen, PageMetadata):
        return pb.PageMetadata(page=page, error_reason=seen.reason)
    return pb.PageMetadata(
        page=page,
        effective_mode=render_mode(seen),
        images_count=seen.images_count,
        word_count=seen.word_count,
        is_scanned=seen.is_scanned,
        has_hidden_text=seen.has_hidden_text,
        fingerprint=seen.fingerprint,
    )


def render_content(content: PageContent) -> Iterator[pb.GetPageContentResponse]:
    yield pb.GetPageContentResponse(text=render_text(content.text))
    for text in content.neighbours:
        yield pb.GetPageContentResponse(neighbour=render_text(text))
    for image in content.images:
        shown = pb.PageImage(
            digest=image.digest,
            media_type=image.media_type,
            content=image.content,
            width_pixels=image.width_pixels,
            height_pixels=image.height_pixels,
            is_decorative=image.is_decorative,
        )
        yield pb.GetPageContentResponse(image=shown)
    if content.render_png is not None:
        yield pb.GetPageContentResponse(render_png=content.render_png)


def render_text(text: PageText) -> pb.PageText:
    return pb.PageText(
        page=text.page,
        text=text.text,
        has_hidden_text=text.has_hidden_text,
        total_pages=text.total_pages,
        is_blank=text.is_blank,
    )


def render_health(report: HealthReport) -> pb.CheckReferenceHealthResponse:
    return pb.CheckReferenceHealthResponse(
        documents=report.documents,
        references=report.references,
        findings=[render_finding(finding) for finding in report.findings[:MAX_FINDINGS]],
        findings_count=len(report.findings),
        repaired_count=sum(finding.repaired for finding in report.findings),
    )


def render_finding(finding: Finding) -> pb.HealthFinding:
    return pb.HealthFinding(
        problem=_PROBLEMS[finding.problem],
        pdf_hash=finding.pdf_hash,
        file_id=str(finding.file_id) if finding.file_id else "",
        counted=finding.counted,
        actual=finding.actual,
        repaired=finding.repaired,
    )
