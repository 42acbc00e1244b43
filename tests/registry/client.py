"""A Registry as one caller sees it, and what tests do with it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import asyncpg
from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from services.registry.config import Config
from services.registry.store import LOCK_DOCUMENTS
from tests.suite import Keys

CHUNK_BYTES = 64 * 1024
COUNT_WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND datname = current_database() AND usename = current_user
"""


@dataclass(frozen=True, kw_only=True)
class Registry:
    """The service as one caller sees it."""

    stub: RegistryServiceStub
    keys: Keys
    config: Config
    token: str = ""

    def as_user(self, user_id: str) -> "Registry":
        """The same service, called with a user's own token."""
        return replace(self, token=self.keys.user_token(user_id))

    def as_service(self, scope: str) -> "Registry":
        """The same service, called by another one."""
        return replace(self, token=self.keys.token(scope))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes along with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    async def upload(
        self, content: bytes, owner: pb.Owner, **header: Any
    ) -> pb.UploadDocumentResponse:
        """Send a PDF in chunks."""
        first = pb.UploadDocumentRequest.Header(owner=owner, **header)
        return await self.send([pb.UploadDocumentRequest(header=first), *chunks(content)])

    async def send(self, messages: list[pb.UploadDocumentRequest]) -> pb.UploadDocumentResponse:
        """Send the messages of an upload as they are."""
        return await self.stub.UploadDocument(iter(messages), metadata=self.metadata)

    async def call(self, rpc: str, request: Any) -> Any:
        """One unary call."""
        return await getattr(self.stub, rpc)(request, metadata=self.metadata)

    async def rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Look into the database past the service."""
        connection = await asyncpg.connect(self.config.database_url.get_secret_value())
        try:
            return [tuple(row) for row in await connection.fetch(query, *arguments)]
        finally:
            await connection.close()

    @asynccontextmanager
    async def document_locked(
        self, pdf_hash: str
    ) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
        """Hold a document's row while the block runs; gives a way to wait for those who wait."""
        connection = await asyncpg.connect(self.config.database_url.get_secret_value())

        async def until_waiting(number: int) -> None:
            # Asked from outside: a transaction sees the activity of its first look ever after.
            while (await self.rows(COUNT_WAITING))[0][0] < number:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

        try:
            async with connection.transaction():
                await connection.execute(LOCK_DOCUMENTS, [pdf_hash])
                yield until_waiting
        finally:
            await connection.close()


def chunks(content: bytes) -> list[pb.UploadDocumentRequest]:
    """A PDF as the messages that follow the header."""
    starts = range(0, len(content), CHUNK_BYTES)
    return [pb.UploadDocumentRequest(chunk=content[at : at + CHUNK_BYTES]) for at in starts]
