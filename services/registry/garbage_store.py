"""SQL about documents nobody refers to any more: announced, removed with their bytes, told of."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from services.registry.revocation_store import add_revocations
from services.runtime.database import Database
from services.runtime.errors import Conflict

LIST_GARBAGE = """
SELECT document.pdf_hash, document.size_bytes
FROM registry.canonical_documents AS document
WHERE document.unreferenced_at <= now() - $1::interval AND document.pdf_hash > $2
ORDER BY document.pdf_hash
LIMIT $3
"""

# Committed before any byte goes: an upload that finds the bytes afterwards finds this too.
ANNOUNCE_COLLECTION = """
UPDATE registry.canonical_documents AS document
SET collecting_at = now()
WHERE
    document.pdf_hash = $1 AND document.reference_count = 0
    AND document.unreferenced_at <= now() - $2::interval
RETURNING document.pdf_hash
"""

# An upload that pins the document waits for this lock, or has taken the announcement back.
LOCK_ANNOUNCED = """
SELECT document.pdf_hash
FROM registry.canonical_documents AS document
WHERE document.pdf_hash = $1 AND document.collecting_at IS NOT NULL
FOR UPDATE
"""

REMOVE_DOCUMENT = """
DELETE FROM registry.canonical_documents AS document
WHERE document.pdf_hash = $1
"""

ADD_COLLECTED = """
INSERT INTO registry.collected_documents (pdf_hash)
VALUES ($1)
ON CONFLICT (pdf_hash) DO NOTHING
"""

FIND_KNOWN = """
SELECT document.pdf_hash
FROM registry.canonical_documents AS document
WHERE document.pdf_hash = any($1::text[])
"""

# Stands in the way of an upload until the end of the transaction, which removes it again.
STAND_IN = """
INSERT INTO registry.canonical_documents (pdf_hash, size_bytes, total_pages)
VALUES ($1, 1, 1)
ON CONFLICT (pdf_hash) DO NOTHING
RETURNING pdf_hash
"""

# One that has come back in the meantime has its generations back as well.
FORGET_RETURNED = """
DELETE FROM registry.collected_documents AS collected
USING registry.canonical_documents AS document
WHERE document.pdf_hash = collected.pdf_hash
"""

LIST_COLLECTED = """
SELECT collected.pdf_hash
FROM registry.collected_documents AS collected
ORDER BY collected.collected_at
LIMIT $1
"""

FORGET_COLLECTED = """
DELETE FROM registry.collected_documents AS collected
WHERE collected.pdf_hash = any($1::text[])
"""


@dataclass(frozen=True, kw_only=True)
class Garbage:
    """A document that nobody refers to."""

    pdf_hash: str
    size_bytes: int


class StillReferred(Conflict):
    """The count says that nobody refers to it, the references say otherwise."""

    reason = "STILL_REFERRED"

    def __init__(self) -> None:
        super().__init__("a document without references has some; repair with CheckReferenceHealth")


class GarbageStore:
    """Documents on their way out."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_garbage(self, *, grace: timedelta, after: str, most: int) -> list[Garbage]:
        """Documents unreferenced for the grace time, by hash."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_GARBAGE, grace, after, most)
        return [Garbage(**dict(row)) for row in rows]

    async def announce(self, pdf_hash: str, *, grace: timedelta) -> bool:
        """Say that the bytes may go from now on, unless somebody refers to them after all."""
        async with self._database.connection() as connection:
            announced = await connection.fetchval(ANNOUNCE_COLLECTION, pdf_hash, grace)
        return announced is not None

    async def collect(self, pdf_hash: str, remove_bytes: Callable[[], Awaitable[None]]) -> bool:
        """Remove an announced document with its bytes; false when an upload was quicker.

        The row goes first, unseen until the end: were it still referred to, this fails with the
        bytes untouched.
        """
        async with self._database.transaction() as connection:
            if await connection.fetchval(LOCK_ANNOUNCED, pdf_hash) is None:
                return False
            try:
                await connection.execute(REMOVE_DOCUMENT, pdf_hash)
            except asyncpg.ForeignKeyViolationError:
                raise StillReferred from None
            await remove_bytes()
            await connection.execute(ADD_COLLECTED, pdf_hash)
            await add_revocations(connection, [pdf_hash])
        return True

    async def find_unknown(self, pdf_hashes: Sequence[str]) -> list[str]:
        """Those of the hashes that no document has."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(FIND_KNOWN, pdf_hashes)
        known = {row["pdf_hash"] for row in rows}
        return [pdf_hash for pdf_hash in pdf_hashes if pdf_hash not in known]

    async def collect_orphan(
        self, pdf_hash: str, remove_bytes: Callable[[], Awaitable[None]]
    ) -> bool:
        """Remove bytes without a document while no upload can make it one."""
        async with self._database.transaction() as connection:
            if await connection.fetchval(STAND_IN, pdf_hash) is None:
                return False
            await remove_bytes()
            await connection.execute(REMOVE_DOCUMENT, pdf_hash)
        return True

    async def list_untold(self, *, most: int) -> list[str]:
        """Documents that are gone and whose generations have not been told."""
        async with self._database.transaction() as connection:
            await connection.execute(FORGET_RETURNED)
            rows = await connection.fetch(LIST_COLLECTED, most)
        return [row["pdf_hash"] for row in rows]

    async def forget_collected(self, pdf_hashes: Collection[str]) -> None:
        """They have been told."""
        async with self._database.connection() as connection:
            await connection.execute(FORGET_COLLECTED, list(pdf_hashes))
