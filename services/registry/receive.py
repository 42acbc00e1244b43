"""Takes bytes off the wire: hashed and written while the next ones come, never all in memory."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import IO

import structlog

from services.registry import metrics
from services.registry.errors import FileTooLarge
from services.runtime.errors import DependencyDown

log = structlog.get_logger()

# Worth a trip to another thread.
BATCH_BYTES = 2 << 20


class SpoolUnavailable(DependencyDown):
    """There is no room, or no disk, for bytes on their way."""

    def __init__(self) -> None:
        super().__init__("bytes cannot be taken in here now", reason="OBJECT_STORE_UNAVAILABLE")


class Background:
    """One piece of work at a time in another thread, while its owner does something else."""

    def __init__(self) -> None:
        self._work: asyncio.Future[None] | None = None

    async def start(self, work: Callable[..., None], *arguments: object) -> None:
        """Begin the next piece as soon as the last one has ended."""
        await self.finish()
        self._work = asyncio.ensure_future(asyncio.to_thread(work, *arguments))

    async def finish(self) -> None:
        """Wait for the last piece; even who is cancelled does not leave it alone with the file."""
        if self._work is None:
            return
        work, self._work = self._work, None
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise
        except OSError as error:
            log.warning("spool_trouble", error=type(error).__name__)
            raise SpoolUnavailable from error


async def receive(
    chunks: AsyncIterator[bytes], spool: IO[bytes], *, limit_bytes: int
) -> tuple[str, int]:
    """Hash and length of everything that comes, once it is all in the spool file."""
    digest, size_bytes = hashlib.sha256(), 0
    writing = Background()
    try:
        async for batch in batches(chunks, limit_bytes):
            length = sum(map(len, batch))
            await writing.start(keep, batch, digest, spool)
            size_bytes += length
            metrics.uploaded_bytes.inc(length)
    finally:
        # Whatever happened, nobody writes to a file that is about to be closed.
        await writing.finish()
    return digest.hexdigest(), size_bytes


async def batches(chunks: AsyncIterator[bytes], limit_bytes: int) -> AsyncIterator[list[bytes]]:
    """Chunks gathered into pieces worth a trip to another thread, up to the limit."""
    waiting: list[bytes] = []
    waiting_bytes = seen_bytes = 0
    async for chunk in chunks:
        seen_bytes += len(chunk)
        if seen_bytes > limit_bytes:
            raise FileTooLarge(limit_bytes=limit_bytes)
        if not chunk:
            continue
        waiting.append(chunk)
        waiting_bytes += len(chunk)
        if waiting_bytes >= BATCH_BYTES:
            yield waiting
            waiting, waiting_bytes = [], 0
    if waiting:
        yield waiting


def keep(batch: list[bytes], digest: "hashlib._Hash", spool: IO[bytes]) -> None:
    """Hash and write; away from the event loop, for a disk may be slow."""
    for chunk in batch:
        digest.update(chunk)
        unwritten = memoryview(chunk)
        while unwritten:
            unwritten = unwritten[spool.write(unwritten) :]
