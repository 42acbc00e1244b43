"""Makes files known without a hash into files like all others: in batches, or on first use."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

from services.registry.backfill_store import BackfillStore, UnhashedFile
from services.registry.domain import Owner
from services.registry.errors import (
    FileNotFound,
    FileTooLarge,
    PdfError,
    PdfReaderLost,
    PdfStalled,
    SourceMissing,
    pdf_error,
)
from services.registry.objects import NoSuchSource, Objects, pieces
from services.registry.upload import Upload
from services.runtime.errors import GlossaError
from services.runtime.single_flight import SingleFlight

BATCH = 100

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
    hashing: SingleFlight[UUID, bool] = field(default_factory=SingleFlight)

    async def run(self, *, retry_failed: bool) -> AsyncGenerator[Progress]:
        """Hash everything there is to hash; tells how far it is after each batch."""
        progress = Progress(total=await self.store.count_unhashed(retry_failed=retry_failed))
        yield progress
        after = UUID(int=0)
        while batch := await self.store.list_unhashed(
            retry_failed=retry_failed, after=after, most=BATCH
        ):
            for file in batch:
                progress = progress.after(await self._outcome(file))
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
        if file.hash_error:  # only a backfill tries that again
            raise self._remembered(file.hash_error)
        try:
            await self._hash(file)
        except PdfStalled as stalled:  # nothing lasting: the same call may succeed a little later
            raise PdfReaderLost from stalled
        return await work()

    async def _outcome(self, file: UnhashedFile) -> str:
        try:
            return "hashed" if await self._hash(file) else "skipped"
        except (PdfError, FileTooLarge, SourceMissing):
            return "failed"

    async def _hash(self, file: UnhashedFile) -> bool:
        """False when somebody else was quicker, or the file is gone."""
        return await self.hashing.run(file.file_id, lambda: self._try_to_hash(file))

    async def _try_to_hash(self, file: UnhashedFile) -> bool:
        try:
            async with self.objects.opened_source(file.source_key) as descriptor:
                return await self.upload.take_in(
                    pieces(descriptor), lambda received: self.store.attach(file.file_id, received)
                )
        except NoSuchSource:
            await self.store.note_hash_error(file.file_id, SourceMissing.reason)
            raise SourceMissing from None
        except (PdfError, FileTooLarge) as error:
            if not isinstance(error, PdfStalled):
                await self.store.note_hash_error(file.file_id, error.reason)
            raise

    def _remembered(self, reason: str) -> GlossaError:
        if reason == SourceMissing.reason:
            return SourceMissing()
        if reason == FileTooLarge.reason:
            return FileTooLarge(limit_bytes=self.upload.max_upload_bytes)
        return pdf_error(reason)
