"""Makes files known without a hash into files like all others: in batches, or on first use."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

from services.registry.backfill_store import BackfillStore, UnhashedFile
from services.registry.domain import Owner
from services.registry.errors import BY_REASON, FileNotFound, FileTooLarge, PdfError, pdf_error
from services.registry.objects import NoSuchSource, Objects
from services.registry.upload import Upload
from services.runtime.single_flight import SingleFlight

BATCH = 100
PIECE_BYTES = 1 << 20
SOURCE_MISSING = "SOURCE_MISSING"

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is."""

    total: int
    hashed: int = 0
    failed: int = 0
    skipped: int = 0

    def after(self, outcome: str) -> "Progress":
        """With one more file done: hashed, failed or skipped."""
        return replace(self, **{outcome: getattr(self, outcome) + 1})


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """May be stopped and started anywhere: every file is one step of its own."""

    store: BackfillStore
    objects: Objects
    upload: Upload
    hashing: SingleFlight[UUID, str] = field(default_factory=SingleFlight)

    async def run(self, *, retry_failed: bool) -> AsyncGenerator[Progress]:
        """Hash everything there is to hash; tells how far it is after each batch."""
        progress = Progress(total=await self.store.count_unhashed(retry_failed=retry_failed))
        yield progress
        after = UUID(int=0)
        while batch := await self.store.list_unhashed(
            retry_failed=retry_failed, after=after, most=BATCH
        ):
            for file in batch:
                progress = progress.after(await self._hash(file))
            after = batch[-1].file_id
            yield progress

    async def on_first_use(
        self, owner: Owner, target: UUID | str, work: Callable[[], Awaitable[Result]]
    ) -> Result:
        """Do some work on an owner's file; if it has no hash yet, give it one first."""
        try:
            return await work()
        except FileNotFound:
            file = None
            if isinstance(target, UUID):
                file = await self.store.find_unhashed(owner, target)
            if file is None:
                raise
        if file.hash_error in BY_REASON:
            raise pdf_error(file.hash_error)
        await self._hash(file)
        return await work()

    async def _hash(self, file: UnhashedFile) -> str:
        return await self.hashing.run(file.file_id, lambda: self._try_to_hash(file))

    async def _try_to_hash(self, file: UnhashedFile) -> str:
        try:
            async with self.objects.opened_source(file.source_key) as descriptor:
                attached = await self.upload.take_in(
                    pieces(descriptor), lambda received: self.store.attach(file.file_id, received)
                )
        except (PdfError, FileTooLarge) as error:
            if isinstance(error, PdfError) and not error.lasting:
                return "failed"
            await self.store.note_hash_error(file.file_id, error.reason)
            return "failed"
        except NoSuchSource:
            await self.store.note_hash_error(file.file_id, SOURCE_MISSING)
            return "failed"
        return "hashed" if attached else "skipped"


async def pieces(descriptor: int) -> AsyncIterator[bytes]:
    """The bytes behind a descriptor, read away from the event loop."""
    place = 0
    while piece := await asyncio.to_thread(os.pread, descriptor, PIECE_BYTES, place):
        yield piece
        place += len(piece)
