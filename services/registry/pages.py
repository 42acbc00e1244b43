"""Answers what is on a page: known pages from the database, others by looking into the PDF once."""

from uuid import UUID

from services.registry.domain import Owner, PageContent, PageMetadata, ResolvedPage
from services.registry.errors import DocumentNotFound, PageOutOfRange, PdfError, pdf_error
from services.registry.objects import Objects
from services.registry.sandbox import PdfSandbox
from services.registry.single_flight import SingleFlight
from services.registry.store import KnownPage, RegistryStore


class Pages:
    """Pages of documents, detected on first use."""

    def __init__(self, *, store: RegistryStore, objects: Objects, sandbox: PdfSandbox) -> None:
        self._store = store
        self._objects = objects
        self._sandbox = sandbox
        self._detecting: SingleFlight[tuple[str, int], PageMetadata] = SingleFlight()

    async def resolve(self, owner: Owner, target: UUID | str, page: int) -> ResolvedPage:
        """A page of the owner's file, or of a document the owner holds, with what is on it."""
        if isinstance(target, UUID):
            known = await self._store.resolve_file(owner, target, page)
        else:
            known = await self._store.resolve_hash(owner, target, page)
        check_readable(known, page)
        return ResolvedPage(
            pdf_hash=known.pdf_hash,
            page=page,
            total_pages=known.total_pages,
            metadata=known.metadata or await self._detect(known.pdf_hash, page),
        )

    async def read(
        self,
        pdf_hash: str,
        page: int,
        *,
        neighbours: int,
        include_images: bool,
        include_render: bool,
    ) -> PageContent:
        """What is on a page, for a caller that has been let in already."""
        known = await self._store.find_page(pdf_hash, page)
        if known is None:
            raise DocumentNotFound
        check_readable(known, page)
        async with self._objects.opened(pdf_hash) as descriptor:
            return await self._sandbox.read(
                descriptor,
                page,
                neighbours=neighbours,
                include_images=include_images,
                include_render=include_render,
            )

    async def _detect(self, pdf_hash: str, page: int) -> PageMetadata:
        return await self._detecting.run((pdf_hash, page), lambda: self._look(pdf_hash, page))

    async def _look(self, pdf_hash: str, page: int) -> PageMetadata:
        try:
            async with self._objects.opened(pdf_hash) as descriptor:
                metadata = await self._sandbox.describe(descriptor, page)
        except PdfError as error:
            if error.lasting:
                await self._store.add_broken_page(pdf_hash, page, error.reason)
            raise
        await self._store.add_page(pdf_hash, page, metadata)
        return metadata


def check_readable(known: KnownPage, page: int) -> None:
    """Refuse a page that does not exist or is known to be broken."""
    if page > known.total_pages:
        raise PageOutOfRange(total_pages=known.total_pages)
    if known.error_reason is not None:
        raise pdf_error(known.error_reason)
