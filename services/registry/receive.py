"""Takes bytes off the wire: hashed and written while the next ones come, never all in memory."""

import asyncio
import hashlib
import mmap
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import IO

import structlog

from services.registry import metrics
from services.registry.errors import FileTooLarge
from services.registry.folder import write_out
from services.runtime.errors import DependencyDown

log = structlog.get_logger()

# Worth a trip to other threads, and two of them are little enough to have for each upload.
PIECE_BYTES = 2 << 20

Chunk = bytes | memoryview


class SpoolUnavailable(DependencyDown):
    """There is no room, or no disk, for bytes on their way."""

    def __init__(self) -> None:
        super().__init__("bytes cannot be taken in here now", reason="OBJECT_STORE_UNAVAILABLE")


class Background:
    """Work in other threads, one round of it at a time, while its owner does something else."""

    def __init__(self) -> None:
        self._round: asyncio.Future[list[BaseException | None]] | None = None

    async def start(self, *works: Callable[[], None]) -> None:
        """Begin the next round, all of it at once, as soon as the last one has ended."""
        await self.finish()
        threads = (asyncio.to_thread(work) for work in works)
        self._round = asyncio.gather(*threads, return_exceptions=True)

    async def finish(self) -> None:
        """Wait for the last round; even who is cancelled does not leave it alone with the file."""
        if self._round is None:
            return
        working, self._round = self._round, None
        try:
            outcomes = await asyncio.shield(working)
        except asyncio.CancelledError:
            await asyncio.wait([working])
            raise
        for error in filter(None, outcomes):
            if not isinstance(error, OSError):
                raise error
            log.warning("spool_trouble", error=type(error).__name__)
            raise SpoolUnavailable from error


class Piece:
    """A stretch of memory that begins where disks like it, filled again and again."""

    def __init__(self) -> None:
        self._memory = memoryview(mmap.mmap(-1, PIECE_BYTES))
        self._filled = 0

    @property
    def content(self) -> memoryview:
        return self._memory[: self._filled]

    def take(self, chunk: Chunk) -> memoryview:
        """Copy what there is room for; answers with what is left over."""
        fits = memoryview(chunk)[: PIECE_BYTES - self._filled]
        self._memory[self._filled : self._filled + len(fits)] = fits
        self._filled += len(fits)
        return memoryview(chunk)[len(fits) :]

    def empty(self) -> None:
        self._filled = 0


async def receive(
    chunks: AsyncIterator[Chunk], spool: IO[bytes], *, limit_bytes: int
) -> tuple[str, int]:
    """Hash and length of everything that comes, once it is all in the spool file."""
    digest, size_bytes = hashlib.sha256(), 0
    keeping = Background()
    filling, kept = Piece(), Piece()
    try:
        async for chunk in chunks:
            size_bytes += len(chunk)
            if size_bytes > limit_bytes:
                raise FileTooLarge(limit_bytes=limit_bytes)
            while chunk := filling.take(chunk):
                await keep(filling, digest, spool, keeping)
                # The round before has ended, so the other piece is free.
                filling, kept = kept, filling
                filling.empty()
        await keep(filling, digest, spool, keeping)
    finally:
        # Whatever happened, nobody writes to a file that is about to be closed.
        await keeping.finish()
    return digest.hexdigest(), size_bytes


async def keep(
    piece: Piece, digest: "hashlib._Hash", spool: IO[bytes], keeping: Background
) -> None:
    """Hash and write at the same time, away from the event loop; both let other threads run."""
    content = piece.content
    metrics.uploaded_bytes.inc(len(content))
    await keeping.start(
        partial(digest.update, content), partial(write_out, spool.fileno(), content)
    )
