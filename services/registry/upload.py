"""Takes a PDF in: receive and hash, look inside, keep the bytes, then tell the database."""

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from services.registry import metrics
from services.registry.domain import ReceivedPdf, Registered, UploadHeader
from services.registry.errors import FileTooLarge, HashMismatch
from services.registry.objects import Objects
from services.registry.sandbox import PdfSandbox
from services.registry.store import RegistryStore

BATCH_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Upload:
    """The way of a PDF from the wire to a reference; until the last step nobody holds anything."""

    store: RegistryStore
    objects: Objects
    sandbox: PdfSandbox
    spool_dir: Path
    max_upload_bytes: int

    async def run(self, header: UploadHeader, chunks: AsyncIterator[bytes]) -> Registered:
        """Bytes first, rows last: a crash in between leaves bytes without rows, not the reverse."""
        # The file has no name: it is gone with us, whatever happens.
        with tempfile.TemporaryFile(dir=self.spool_dir, buffering=0) as spool:
            pdf_hash, size_bytes = await self._receive(chunks, spool)
            if header.expected_pdf_hash not in (None, pdf_hash):
                raise HashMismatch
            total_pages = await self.sandbox.inspect(spool.fileno())
            await self.objects.put(pdf_hash, spool, size_bytes=size_bytes)
        received = ReceivedPdf(pdf_hash=pdf_hash, size_bytes=size_bytes, total_pages=total_pages)
        registered = await self.store.register(header, received)
        metrics.uploads.labels(registered.note.value).inc()
        return registered

    async def _receive(self, chunks: AsyncIterator[bytes], spool: IO[bytes]) -> tuple[str, int]:
        digest = hashlib.sha256()
        size_bytes = 0
        async for batch in batches(chunks, self.max_upload_bytes):
            await asyncio.to_thread(keep, batch, digest, spool)
            size_bytes += len(batch)
            metrics.uploaded_bytes.inc(len(batch))
        return digest.hexdigest(), size_bytes


async def batches(chunks: AsyncIterator[bytes], limit_bytes: int) -> AsyncIterator[bytes]:
    """Chunks gathered into pieces worth a trip to another thread, up to the limit."""
    waiting = bytearray()
    seen_bytes = 0
    async for chunk in chunks:
        seen_bytes += len(chunk)
        if seen_bytes > limit_bytes:
            raise FileTooLarge(limit_bytes=limit_bytes)
        waiting += chunk
        if len(waiting) >= BATCH_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def keep(batch: bytes, digest: "hashlib._Hash", spool: IO[bytes]) -> None:
    """Hash and write; away from the event loop, for a disk may be slow."""
    digest.update(batch)
    unwritten = memoryview(batch)
    while unwritten:
        unwritten = unwritten[spool.write(unwritten) :]
