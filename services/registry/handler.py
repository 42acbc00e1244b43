"""RegistryService as gRPC sees it: check, call, render; decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceServicer

from services.registry import wire
from services.registry.backfill import Backfill
from services.registry.callbacks import CallbackRules
from services.registry.collect import CollectGarbage
from services.registry.files import Files
from services.registry.health import CheckHealth
from services.registry.pages import Pages
from services.registry.reference_store import ReferenceStore
from services.registry.revocations import Revocations
from services.registry.upload import Upload
from services.registry.upload_part import (
    UploadPart,
    chunk_of,
    header_of,
    is_empty,
    read_upload_part,
)
from services.runtime.auth import allow
from services.runtime.errors import InvalidInput
from services.runtime.interceptors import Context, deserialized_by
from services.runtime.validation import parse_pdf_hash, parse_uuid, require

MAX_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RegistryHandler(RegistryServiceServicer):
    """Speaks protobuf for documents, files, references and pages."""

    upload: Upload
    files: Files
    references: ReferenceStore
    pages: Pages
    backfill: Backfill
    garbage: CollectGarbage
    health: CheckHealth
    revocations: Revocations
    callback_rules: CallbackRules
    idle_seconds: float

    @allow("gateway", "cache", "admin", "user")
    @deserialized_by(read_upload_part)
    async def UploadDocument(
        self, request_iterator: AsyncIterator[UploadPart], context: Context
    ) -> pb.UploadDocumentResponse:
        parts = self._patiently(request_iterator)
        first = header_of(await anext(parts, None))
        header = wire.parse_header(first, self.callback_rules.check)
        registered = await self.upload.run(header, _chunks(parts))
        if header.replace:
            await self.revocations.settle()
        return pb.UploadDocumentResponse(
            file=wire.render_file(registered.holding.file),
            document=wire.render_document(registered.holding.document),
            note=wire.render_note(registered.note),
        )

    @allow("gateway", "cache", "admin", "user")
    async def GetFile(self, request: pb.GetFileRequest, context: Context) -> pb.GetFileResponse:
        owner = wire.parse_owner(request.owner)
        holding = await self.files.get(owner, parse_uuid("file_id", request.file_id))
        return pb.GetFileResponse(
            file=wire.render_file(holding.file), document=wire.render_document(holding.document)
        )

    @allow("gateway", "cache", "admin", "user")
    async def ListFiles(
        self, request: pb.ListFilesRequest, context: Context
    ) -> pb.ListFilesResponse:
        files, next_page_token = await self.files.list_page(
            wire.parse_owner(request.owner),
            page_size=wire.parse_page_size(request.page_size),
            page_token=request.page_token,
        )
        return pb.ListFilesResponse(
            files=[wire.render_file(file) for file in files], next_page_token=next_page_token
        )

    @allow("gateway", "cache", "admin", "user")
    async def DeleteFile(
        self, request: pb.DeleteFileRequest, context: Context
    ) -> pb.DeleteFileResponse:
        owner = wire.parse_owner(request.owner)
        await self.files.delete(owner, parse_uuid("file_id", request.file_id))
        await self.revocations.settle()
        return pb.DeleteFileResponse()

    @allow("gateway", "cache", "admin", "user")
    async def BulkDeleteFiles(
        self, request: pb.BulkDeleteFilesRequest, context: Context
    ) -> pb.BulkDeleteFilesResponse:
        owner = wire.parse_owner(request.owner)
        file_ids = wire.parse_ids("file_ids", request.file_ids)
        deleted = await self.files.store.delete_files(owner, file_ids)
        await self.revocations.settle()
        return pb.BulkDeleteFilesResponse(deleted_file_ids=[str(one) for one in deleted])

    @allow("gateway", "worker", "admin")
    async def AddReference(
        self, request: pb.AddReferenceRequest, context: Context
    ) -> pb.AddReferenceResponse:
        owner, target = wire.parse_owner(request.owner), wire.parse_target(request)
        ref_type = wire.parse_ref_type(request.ref_type)
        ref_id = parse_uuid("ref_id", request.ref_id)
        pdf_hash, added = await self.backfill.on_first_use(
            owner,
            target,
            lambda: self.references.add_reference(owner, target, ref_type=ref_type, ref_id=ref_id),
        )
        return pb.AddReferenceResponse(pdf_hash=pdf_hash, added=added)

    @allow("gateway", "worker", "admin")
    async def RemoveReference(
        self, request: pb.RemoveReferenceRequest, context: Context
    ) -> pb.RemoveReferenceResponse:
        ref_type = wire.parse_ref_type(request.ref_type)
        ref_ids = wire.parse_ids("ref_ids", request.ref_ids)
        removed = await self.references.remove_references(ref_type, ref_ids)
        await self.revocations.settle()
        return pb.RemoveReferenceResponse(removed_ref_ids=[str(one) for one in removed])

    @allow("gateway", "cache", "worker", "admin", "user")
    async def GetDocument(
        self, request: pb.GetDocumentRequest, context: Context
    ) -> pb.GetDocumentResponse:
        owner = wire.parse_owner(request.owner)
        pdf_hash = parse_pdf_hash("pdf_hash", request.pdf_hash)
        holdings = await self.files.get_document(owner, pdf_hash)
        return pb.GetDocumentResponse(
            document=wire.render_document(holdings[0].document),
            files=[wire.render_file(holding.file) for holding in holdings],
        )

    @allow("gateway", "cache", "admin", "user")
    async def ResolvePage(
        self, request: pb.ResolvePageRequest, context: Context
    ) -> pb.ResolvePageResponse:
        owner, target = wire.parse_owner(request.owner), wire.parse_target(request)
        page = wire.parse_page(request.page)
        neighbours = wire.parse_neighbours(request.neighbours)
        resolved = await self.backfill.on_first_use(
            owner,
            target,
            lambda: self.pages.resolve(owner, target, page, neighbours=neighbours),
        )
        return wire.render_resolved(resolved)

    @allow("gateway", "cache", "worker", "admin", "user")
    async def BatchGetPageMetadata(
        self, request: pb.BatchGetPageMetadataRequest, context: Context
    ) -> pb.BatchGetPageMetadataResponse:
        owner, target = wire.parse_owner(request.owner), wire.parse_target(request)
        pages = wire.parse_pages(request.pages)
        known, seen = await self.backfill.on_first_use(
            owner, target, lambda: self.pages.describe(owner, target, pages)
        )
        return pb.BatchGetPageMetadataResponse(
            pdf_hash=known.pdf_hash,
            total_pages=known.total_pages,
            pages=[wire.render_page(page, seen[page]) for page in pages],
        )

    @allow("worker", "admin")
    async def GetPageContent(
        self, request: pb.GetPageContentRequest, context: Context
    ) -> AsyncIterator[pb.GetPageContentResponse]:
        content = await self.pages.read(
            parse_pdf_hash("pdf_hash", request.pdf_hash),
            wire.parse_page(request.page),
            neighbours=wire.parse_neighbours(request.neighbours),
            include_images=request.include_images,
            include_render=request.include_render,
        )
        for part in wire.render_content(content):
            yield part

    @allow("gateway", "admin", "user")
    async def DownloadDocument(
        self, request: pb.DownloadDocumentRequest, context: Context
    ) -> AsyncIterator[pb.DownloadDocumentResponse]:
        owner, target = wire.parse_owner(request.owner), wire.parse_target(request)
        async with aclosing(self.files.download(owner, target)) as parts:
            async for part in parts:
                if isinstance(part, bytes):
                    yield pb.DownloadDocumentResponse(chunk=part)
                else:
                    yield pb.DownloadDocumentResponse(document=wire.render_document(part))

    @allow("admin")
    async def BackfillContentHashes(
        self, request: pb.BackfillContentHashesRequest, context: Context
    ) -> AsyncIterator[pb.BackfillContentHashesResponse]:
        async with aclosing(self.backfill.run(retry_failed=request.retry_failed)) as run:
            async for progress in run:
                yield pb.BackfillContentHashesResponse(**vars(progress))

    @allow("admin")
    async def CollectGarbage(
        self, request: pb.CollectGarbageRequest, context: Context
    ) -> pb.CollectGarbageResponse:
        grace = wire.parse_grace(request)
        collected = await self.garbage.run(grace=grace, dry_run=request.dry_run)
        return pb.CollectGarbageResponse(**vars(collected))

    @allow("admin")
    async def CheckReferenceHealth(
        self, request: pb.CheckReferenceHealthRequest, context: Context
    ) -> pb.CheckReferenceHealthResponse:
        report = await self.health.run(repair=request.repair, check_bytes=request.check_bytes)
        return wire.render_health(report)

    @allow("cache")
    async def WatchRevocations(
        self, request: pb.WatchRevocationsRequest, context: Context
    ) -> AsyncIterator[pb.WatchRevocationsResponse]:
        async with aclosing(self.revocations.watch()) as news:
            async for pdf_hashes in news:
                yield pb.WatchRevocationsResponse(pdf_hashes=pdf_hashes)

    async def _patiently(self, messages: AsyncIterator[UploadPart]) -> AsyncIterator[UploadPart]:
        """The caller's messages while bytes keep coming: nobody holds a place by saying nothing."""
        begun = False
        while True:
            try:
                async with asyncio.timeout(self.idle_seconds):
                    message = await anext(messages)
                    while begun and is_empty(message):
                        message = await anext(messages)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise InvalidInput(
                    f"nothing came for {self.idle_seconds:g} seconds", field="chunk"
                ) from None
            begun = True
            yield message


async def _chunks(parts: AsyncIterator[UploadPart]) -> AsyncIterator[bytes | memoryview]:
    async for part in parts:
        chunk = chunk_of(part)
        require(len(chunk) <= MAX_CHUNK_BYTES, "chunk", "must be at most 1 MiB")
        yield chunk
