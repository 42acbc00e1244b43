"""Removes what nobody refers to: documents after their grace time, and bytes no document knows."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from services.registry import metrics
from services.registry.clients import CacheClient
from services.registry.garbage_store import Garbage, GarbageStore
from services.registry.objects import Objects
from services.runtime.errors import GlossaError

log = structlog.get_logger()

BATCH = 100
# The lock on a document may be lost with its connection: whoever slept does not touch bytes.
TOO_LATE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a run has done, or would have."""

    documents: int = 0
    freed_bytes: int = 0
    orphan_objects: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class CollectGarbage:
    """Any number of replicas may run this at the same time."""

    store: GarbageStore
    objects: Objects
    grace: timedelta

    async def run_once(self) -> Collected:
        """What the Registry does by itself; orphans come from restored backups alone.

        Bytes are announced before they are put, so no crash of ours leaves any.
        """
        done = await self._collect_documents(self.grace, dry_run=False)
        await self.objects.remove_unfinished()
        return done

    async def run(self, *, grace: timedelta | None, dry_run: bool) -> Collected:
        """Collect documents, then orphans, then what crashes have left."""
        grace = self.grace if grace is None else grace
        done = await self._collect_documents(grace, dry_run=dry_run)
        orphans = await self._collect_orphans(dry_run=dry_run)
        if not dry_run:
            await self.objects.remove_unfinished()
        return replace(done, orphan_objects=orphans)

    async def _collect_documents(self, grace: timedelta, *, dry_run: bool) -> Collected:
        done, after = Collected(), ""
        while batch := await self.store.list_garbage(grace=grace, after=after, most=BATCH):
            for garbage in batch:
                done = await self._collect(garbage, grace, done, dry_run=dry_run)
            after = batch[-1].pdf_hash
        return done

    async def _collect(
        self, garbage: Garbage, grace: timedelta, done: Collected, *, dry_run: bool
    ) -> Collected:
        try:
            if not dry_run and not await self._remove(garbage.pdf_hash, grace):
                return done  # somebody refers to it again
        except GlossaError as error:
            # One that cannot go now does not keep the others.
            log.warning("document_not_collected", reason=error.reason)
            return replace(done, failed=done.failed + 1)
        return replace(
            done,
            documents=done.documents + 1,
            freed_bytes=done.freed_bytes + garbage.size_bytes,
        )

    async def _remove(self, pdf_hash: str, grace: timedelta) -> bool:
        if not await self.store.announce(pdf_hash, grace=grace):
            return False
        removed = await self.store.collect(pdf_hash, self._removal(pdf_hash))
        metrics.collected_documents.inc(removed)
        return removed

    async def _collect_orphans(self, *, dry_run: bool) -> int:
        orphans = 0
        async for found in self.objects.list_objects():
            for pdf_hash in await self.store.find_unknown([one.pdf_hash for one in found]):
                if dry_run or await self.store.collect_orphan(pdf_hash, self._removal(pdf_hash)):
                    orphans += 1
        return orphans

    def _removal(self, pdf_hash: str) -> "Removal":
        return Removal(self.objects, pdf_hash)


class Removal:
    """Removes bytes, unless it has taken suspiciously long to come to it."""

    def __init__(self, objects: Objects, pdf_hash: str) -> None:
        self._objects = objects
        self._pdf_hash = pdf_hash
        self._until = asyncio.get_running_loop().time() + TOO_LATE_SECONDS

    async def __call__(self) -> None:
        if asyncio.get_running_loop().time() > self._until:
            raise TooLate
        try:
            # The lock that keeps uploads out does not last for ever either.
            async with asyncio.timeout_at(self._until):
                await self._objects.remove(self._pdf_hash)
        except TimeoutError:
            raise TooLate from None


class TooLate(GlossaError):
    """The machine slept; the next run tries again."""

    reason = "COLLECTION_TOO_LATE"

    def __init__(self) -> None:
        super().__init__("the collection was held up and will be tried again")


@dataclass(frozen=True, kw_only=True)
class TellCollected:
    """Tells the Cache which documents are gone, until it has heard."""

    store: GarbageStore
    cache: CacheClient

    async def run_once(self) -> int:
        """One batch at a time; what is not acknowledged is told again."""
        told = 0
        while untold := await self.store.list_untold(most=BATCH):
            for pdf_hash in untold:
                await self.cache.invalidate_document(pdf_hash)
                await self.store.forget_collected([pdf_hash])
                told += 1
        return told
