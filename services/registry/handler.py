"""RegistryService as gRPC sees it: check, call, render; decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from uuid import UUID

from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceServicer

from services.registry.domain import (
    Document,
    File,
    Note,
    Owner,
    PageContent,
    PageText,
    ResolvedPage,
    UploadHeader,
    clean_filename,
)
from services.registry.pages import Pages
from services.registry.revocations import Revocations
from services.registry.store import RegistryStore
from services.registry.upload import Upload
from services.runtime.auth import NotYourUser, allow, current_caller, require_user
from services.runtime.errors import InvalidInput
from services.runtime.interceptors import Context
from services.runtime.validation import parse_identity, parse_pdf_hash, parse_uuid, require

MAX_CHUNK_BYTES = 1 << 20
MAX_NEIGHBOURS = 2

_NOTES = {
    Note.CREATED: pb.UPLOAD_NOTE_CREATED,
    Note.DEDUPLICATED: pb.UPLOAD_NOTE_DEDUPLICATED,
    Note.DUPLICATE_DETECTED: pb.UPLOAD_NOTE_DUPLICATE_DETECTED,
}


class RegistryHandler(RegistryServiceServicer):
    """Speaks protobuf for documents, files and pages."""

    def __init__(
        self,
        *,
        store: RegistryStore,
        upload: Upload,
        pages: Pages,
        revocations: Revocations,
        idle_seconds: float,
    ) -> None:
        self._store = store
        self._upload = upload
        self._pages = pages
        self._revocations = revocations
        self._idle_seconds = idle_seconds

    @allow("gateway", "cache", "admin", "user")
    async def UploadDocument(
        self, request_iterator: AsyncIterator[pb.UploadDocumentRequest], context: Context
    ) -> pb.UploadDocumentResponse:
        parts = self._patiently(request_iterator)
        first = await anext(parts, pb.UploadDocumentRequest())
        require(first.WhichOneof("part") == "header", "header", "must be the first message")
        registered = await self._upload.run(_header(first.header), _chunks(parts))
        return pb.UploadDocumentResponse(
            file=_file(registered.holding.file),
            document=_document(registered.holding.document),
            note=_NOTES[registered.note],
        )

    @allow("gateway", "cache", "admin", "user")
    async def GetFile(self, request: pb.GetFileRequest, context: Context) -> pb.GetFileResponse:
        owner = _owner(request.owner, "owner")
        holding = await self._store.get_file(owner, parse_uuid("file_id", request.file_id))
        return pb.GetFileResponse(file=_file(holding.file), document=_document(holding.document))

    @allow("gateway", "cache", "admin", "user")
    async def DeleteFile(
        self, request: pb.DeleteFileRequest, context: Context
    ) -> pb.DeleteFileResponse:
        owner = _owner(request.owner, "owner")
        await self._store.delete_file(owner, parse_uuid("file_id", request.file_id))
        return pb.DeleteFileResponse()

    @allow("gateway", "cache", "admin", "user")
    async def ResolvePage(
        self, request: pb.ResolvePageRequest, context: Context
    ) -> pb.ResolvePageResponse:
        owner = _owner(request.owner, "owner")
        target = _target(request)
        require(request.page >= 1, "page", "must be 1 or more")
        require_neighbours(request.neighbours)
        resolved = await self._pages.resolve(
            owner, target, request.page, neighbours=request.neighbours
        )
        return _resolved(resolved)

    @allow("worker", "admin")
    async def GetPageContent(
        self, request: pb.GetPageContentRequest, context: Context
    ) -> AsyncIterator[pb.GetPageContentResponse]:
        pdf_hash = parse_pdf_hash("pdf_hash", request.pdf_hash)
        require(request.page >= 1, "page", "must be 1 or more")
        require_neighbours(request.neighbours)
        content = await self._pages.read(
            pdf_hash,
            request.page,
            neighbours=request.neighbours,
            include_images=request.include_images,
            include_render=request.include_render,
        )
        for part in _content_parts(content):
            yield part

    async def _patiently(
        self, messages: AsyncIterator[pb.UploadDocumentRequest]
    ) -> AsyncIterator[pb.UploadDocumentRequest]:
        """The caller's messages while they keep coming: nobody holds a place by silence."""
        while True:
            try:
                async with asyncio.timeout(self._idle_seconds):
                    message = await anext(messages)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise InvalidInput(
                    f"nothing came for {self._idle_seconds:g} seconds", field="chunk"
                ) from None
            yield message

    @allow("cache")
    async def WatchRevocations(
        self, request: pb.WatchRevocationsRequest, context: Context
    ) -> AsyncIterator[pb.WatchRevocationsResponse]:
        async with aclosing(self._revocations.watch()) as news:
            async for pdf_hashes in news:
                yield pb.WatchRevocationsResponse(pdf_hashes=pdf_hashes)


def require_neighbours(neighbours: int) -> None:
    """Context is short: a page or two on each side."""
    require(0 <= neighbours <= MAX_NEIGHBOURS, "neighbours", f"must be 0 to {MAX_NEIGHBOURS}")


async def _chunks(parts: AsyncIterator[pb.UploadDocumentRequest]) -> AsyncIterator[bytes]:
    async for part in parts:
        require(part.WhichOneof("part") == "chunk", "chunk", "must be set after the header")
        require(len(part.chunk) <= MAX_CHUNK_BYTES, "chunk", "must be at most 1 MiB")
        yield part.chunk


def _header(header: pb.UploadDocumentRequest.Header) -> UploadHeader:
    require(header.callback_url == "", "header.callback_url", "callbacks are not available yet")
    expected = header.expected_pdf_hash
    return UploadHeader(
        owner=_owner(header.owner, "header.owner"),
        file_id=parse_uuid("header.file_id", header.file_id) if header.file_id else None,
        filename=clean_filename(header.filename),
        force=header.force,
        expected_pdf_hash=parse_pdf_hash("header.expected_pdf_hash", expected)
        if expected
        else None,
    )


def _owner(owner: pb.Owner, field: str) -> Owner:
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


def _target(request: pb.ResolvePageRequest) -> UUID | str:
    kind = request.WhichOneof("target")
    require(kind is not None, "target", "must be a file_id or a pdf_hash")
    if kind == "file_id":
        return parse_uuid("file_id", request.file_id)
    return parse_pdf_hash("pdf_hash", request.pdf_hash)


def _file(file: File) -> pb.File:
    message = pb.File(
        file_id=str(file.file_id),
        pdf_hash=file.pdf_hash,
        filename=file.filename,
        size_bytes=file.size_bytes,
    )
    message.created_at.FromDatetime(file.created_at)
    return message


def _document(document: Document) -> pb.Document:
    """Users are not told how many others hold a document."""
    told = 0 if current_caller().is_user else document.reference_count
    return pb.Document(
        pdf_hash=document.pdf_hash, total_pages=document.total_pages, reference_count=told
    )


def _resolved(resolved: ResolvedPage) -> pb.ResolvePageResponse:
    metadata = resolved.metadata
    with_images = pb.EFFECTIVE_MODE_WITH_IMAGES
    return pb.ResolvePageResponse(
        pdf_hash=resolved.pdf_hash,
        page=resolved.page,
        effective_mode=with_images if metadata.has_images else pb.EFFECTIVE_MODE_TEXT_ONLY,
        images_count=metadata.images_count,
        word_count=metadata.word_count,
        is_scanned=metadata.is_scanned,
        fingerprint=metadata.fingerprint,
        total_pages=resolved.total_pages,
        context_fingerprint=resolved.context_fingerprint or "",
    )


def _content_parts(content: PageContent) -> list[pb.GetPageContentResponse]:
    parts = [pb.GetPageContentResponse(text=_text(content.text))]
    parts += [pb.GetPageContentResponse(neighbour=_text(text)) for text in content.neighbours]
    for image in content.images:
        shown = pb.PageImage(
            digest=image.digest,
            media_type=image.media_type,
            content=image.content,
            width_pixels=image.width_pixels,
            height_pixels=image.height_pixels,
        )
        parts.append(pb.GetPageContentResponse(image=shown))
    if content.render_png is not None:
        parts.append(pb.GetPageContentResponse(render_png=content.render_png))
    return parts


def _text(text: PageText) -> pb.PageText:
    return pb.PageText(page=text.page, text=text.text)
