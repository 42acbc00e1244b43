"""What an owner has: single files, lists of them in pages, documents and their bytes."""

import base64
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from services.registry.backfill import Backfill
from services.registry.domain import Document, File, Holding, Owner
from services.registry.errors import FileNotFound
from services.registry.objects import Objects, pieces
from services.registry.store import RegistryStore
from services.runtime.errors import InvalidInput

# Before the newest file: where every list begins.
BEGINNING = (datetime(9999, 1, 1, tzinfo=UTC), UUID(int=2**128 - 1))
EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
MOST_FILES_OF_A_DOCUMENT = 100


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files as their owner sees them; those without a hash get one on first use."""

    store: RegistryStore
    objects: Objects
    backfill: Backfill

    async def get(self, owner: Owner, file_id: UUID) -> Holding:
        """One file with its document."""
        return await self.backfill.on_first_use(
            owner, file_id, lambda: self.store.get_file(owner, file_id)
        )

    async def list_page(
        self, owner: Owner, *, page_size: int, page_token: str
    ) -> tuple[Sequence[File], str]:
        """Some files, newest first, and the token of those that follow."""
        before = read_token(page_token) if page_token else BEGINNING
        files = await self.store.list_files(owner, before=before, most=page_size + 1)
        shown = files[:page_size]
        more = len(files) > page_size
        return shown, write_token(shown[-1].created_at, shown[-1].file_id) if more else ""

    async def delete(self, owner: Owner, file_id: UUID) -> None:
        """Remove one file that is there."""
        if not await self.store.delete_files(owner, [file_id]):
            raise FileNotFound

    async def get_document(self, owner: Owner, pdf_hash: str) -> list[Holding]:
        """The owner's files of a document, at least one."""
        return await self.store.get_holdings(owner, pdf_hash, most=MOST_FILES_OF_A_DOCUMENT)

    async def download(self, owner: Owner, target: UUID | str) -> AsyncGenerator[Document | bytes]:
        """A document, and then its bytes."""
        if isinstance(target, UUID):
            holding = await self.get(owner, target)
        else:
            [holding, *_] = await self.get_document(owner, target)
        async with self.objects.opened(holding.document.pdf_hash) as descriptor:
            yield holding.document
            async for piece in pieces(descriptor):
                yield piece


def write_token(created_at: datetime, file_id: UUID) -> str:
    """A place in a list, opaque to who carries it."""
    place = f"{(created_at - EPOCH) // MICROSECOND} {file_id}"
    return base64.urlsafe_b64encode(place.encode()).decode()


def read_token(token: str) -> tuple[datetime, UUID]:
    """The place a token of ours names."""
    try:
        moment, _, file_id = base64.urlsafe_b64decode(token.encode()).decode().partition(" ")
        return EPOCH + int(moment) * MICROSECOND, UUID(file_id)
    except (ValueError, OverflowError):
        raise InvalidInput(
            "page_token must be the next_page_token of an answer", field="page_token"
        ) from None
