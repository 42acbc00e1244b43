"""Answers what is on a page: known pages from the database, others by looking into the PDF once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from services.registry.domain import (
    BrokenPage,
    KnownPage,
    KnownPages,
    Owner,
    PageContent,
    PageMetadata,
    ResolvedPage,
    context_fingerprint,
    pages_around,
)
from services.registry.errors import (
    DocumentNotFound,
    PageOutOfRange,
    PdfError,
    PdfReaderLost,
    PdfStalled,
    pdf_error,
)
from services.registry.objects import Objects
from services.registry.page_store import PageStore
from services.registry.pdf_answers import Seen
from services.registry.sandbox import PdfSandbox
from services.runtime.single_flight import SharedWork

# What the database's integers hold.
HIGHEST_PAGE = 2**31 - 1


class Pages:
    """Pages of documents, detected on first use."""

    def __init__(self, *, store: PageStore, objects: Objects, sandbox: PdfSandbox) -> None:
        self._store = store
        self._objects = objects
        self._sandbox = sandbox
        self._detecting: SharedWork[tuple[str, int], Seen] = SharedWork()

    async def resolve(
        self, owner: Owner, target: UUID | str, page: int, *, neighbours: int = 0
    ) -> ResolvedPage:
        """A page of the owner's file, or of a document the owner holds, with what is on it."""
        known = await self._store.resolve(owner, target, possible_pages(page, neighbours))
        total_pages = known.total_pages
        pages = await self._around(known, page, neighbours)
        metadata = metadata_of(pages[page])
        return ResolvedPage(
            pdf_hash=known.pdf_hash,
            page=page,
            total_pages=total_pages,
            metadata=metadata,
            context_fingerprint=context_fingerprint(
                page, neighbours=neighbours, total_pages=total_pages, pages=readable(pages)
            ),
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
        known = await self._store.find_pages(pdf_hash, possible_pages(page, neighbours))
        if known is None:
            raise DocumentNotFound
        pages = await self._around(known, page, neighbours)
        metadata = metadata_of(pages[page])
        async with self._objects.opened(pdf_hash) as descriptor:
            try:
                content = await self._sandbox.read(
                    descriptor,
                    page,
                    neighbours=neighbours,
                    include_images=include_images,
                    include_render=include_render,
                )
            except PdfStalled as stalled:  # the same call may succeed a little later
                raise PdfReaderLost from stalled
        text = replace(
            content.text,
            has_hidden_text=metadata.has_hidden_text,
            total_pages=known.total_pages,
        )
        around = tuple(
            replace(one, has_hidden_text=may_hide_text(pages.get(one.page)))
            for one in content.neighbours
        )
        return replace(content, text=text, neighbours=around)

    async def _around(self, known: KnownPages, page: int, neighbours: int) -> dict[int, Seen]:
        """A page and its neighbours; only the page itself has to be one that can be read."""
        check_in_range(known, page)
        if page in known.pages:  # a page that is known to be broken asks nothing of its neighbours
            metadata_of(as_seen(known.pages[page]))
        return await self.complete(
            known, pages_around(page, neighbours=neighbours, total_pages=known.total_pages)
        )

    async def describe(
        self, owner: Owner, target: UUID | str, wanted: Sequence[int]
    ) -> tuple[KnownPages, dict[int, Seen]]:
        """Several pages of a document the owner holds, detected together where need be."""
        known = await self._store.resolve(owner, target, list(wanted))
        check_in_range(known, max(wanted))
        return known, await self.complete(known, wanted)

    async def complete(self, known: KnownPages, wanted: Sequence[int]) -> dict[int, Seen]:
        """The wanted pages: those that are known, and all others from one look into the PDF."""
        seen = {page: as_seen(known.pages[page]) for page in wanted if page in known.pages}
        # Each once, however often it is asked for.
        keys = [(known.pdf_hash, page) for page in dict.fromkeys(wanted) if page not in seen]
        if keys:
            looked = await self._detecting.run(keys, self._look)
            seen |= {page: found for (_, page), found in looked.items()}
        return seen

    async def _look(self, keys: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Seen]:
        pdf_hash = keys[0][0]
        async with self._objects.opened(pdf_hash) as descriptor:
            seen = await self._sandbox.describe(descriptor, [page for _, page in keys])
        lasting = {page: as_known(found) for page, found in seen.items() if is_lasting(found)}
        if lasting:
            await self._store.add_pages(pdf_hash, lasting)
        return {(pdf_hash, page): found for page, found in seen.items()}


def possible_pages(page: int, neighbours: int) -> list[int]:
    """A page and its neighbours, as long as it is not known how many pages there are."""
    return list(range(max(1, page - neighbours), min(page + neighbours, HIGHEST_PAGE) + 1))


def may_hide_text(seen: Seen | None) -> bool:
    """Of a neighbour: one that could not be looked at is not to be trusted."""
    return not isinstance(seen, PageMetadata) or seen.has_hidden_text


def check_in_range(known: KnownPages, page: int) -> None:
    """Refuse a page that does not exist."""
    if page > known.total_pages:
        raise PageOutOfRange(total_pages=known.total_pages)


def metadata_of(seen: Seen) -> PageMetadata:
    """What is on a page, or the error that keeps us from knowing."""
    if isinstance(seen, PdfError):
        raise seen
    return seen


def is_lasting(seen: Seen) -> bool:
    """Whether another look would find the same."""
    return isinstance(seen, PageMetadata) or seen.lasting


def as_known(seen: Seen) -> KnownPage:
    """What is remembered of a look."""
    return BrokenPage(reason=seen.reason) if isinstance(seen, PdfError) else seen


def as_seen(known: KnownPage) -> Seen:
    """What a look would find, from memory."""
    return pdf_error(known.reason) if isinstance(known, BrokenPage) else known


def readable(pages: Mapping[int, Seen]) -> dict[int, KnownPage]:
    """Those pages that are there to be read."""
    return {page: seen for page, seen in pages.items() if isinstance(seen, PageMetadata)}
