"""Takes a PDF in: receive and hash, look inside, keep the bytes, then tell the database."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from services.registry import metrics
from services.registry.domain import ReceivedPdf, Registered, UploadHeader
from services.registry.errors import DocumentGone, HashMismatch
from services.registry.folder import spool_file
from services.registry.objects import Objects
from services.registry.receive import Chunk, receive
from services.registry.sandbox import PdfSandbox
from services.registry.store import RegistryStore

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Upload:
    """The way of a PDF from the wire to a reference; until the last step nobody holds anything."""

    store: RegistryStore
    objects: Objects
    sandbox: PdfSandbox
    spool_dir: Path
    max_upload_bytes: int
    # Whether somebody looks at all pages afterwards, and how to wake them.
    processed_later: bool
    wake_processing: Callable[[], None]

    async def run(self, header: UploadHeader, chunks: AsyncIterator[Chunk]) -> Registered:
        """Take a PDF in for an owner."""
        store = self.store.replace if header.replace else self.store.register
        registered = await self.take_in(
            chunks,
            lambda received: store(header, received),
            expected_pdf_hash=header.expected_pdf_hash,
        )
        metrics.uploads.labels(registered.note.value).inc()
        return registered

    async def take_in(
        self,
        chunks: AsyncIterator[Chunk],
        register: Callable[[ReceivedPdf], Awaitable[Result]],
        *,
        expected_pdf_hash: str | None = None,
    ) -> Result:
        """Receive, look inside, keep the bytes, and only then register."""
        with spool_file(self.spool_dir) as spool:
            pdf_hash, size_bytes = await receive(chunks, spool, limit_bytes=self.max_upload_bytes)
            if expected_pdf_hash not in (None, pdf_hash):
                raise HashMismatch
            total_pages = await self.sandbox.inspect(spool.fileno())
            received = ReceivedPdf(
                pdf_hash=pdf_hash, size_bytes=size_bytes, total_pages=total_pages
            )
            result = await self._keep(received, spool, register)
        self.wake_processing()
        return result

    async def _keep(
        self,
        received: ReceivedPdf,
        spool: IO[bytes],
        register: Callable[[ReceivedPdf], Awaitable[Result]],
    ) -> Result:
        """Announce the document, put its bytes, register: a crash leaves nothing unknown behind.

        Collection may take an announced document away again before it is registered; then the
        bytes, which we still have, are put anew.
        """
        while True:
            await self.store.pin(received, processed=not self.processed_later)
            await self.objects.put(received.pdf_hash, spool, size_bytes=received.size_bytes)
            with suppress(DocumentGone):
                return await register(received)
