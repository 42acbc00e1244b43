"""SQL about files that are known without a hash."""

from dataclasses import dataclass
from uuid import UUID

from services.registry.domain import Owner, ReceivedPdf
from services.registry.errors import DocumentGone
from services.registry.store import COUNT_REFERENCES, LOCK_DOCUMENTS, SET_FILE_REFERENCE
from services.runtime.database import Database

COUNT_UNHASHED = """
SELECT count(*)
FROM registry.files AS file
WHERE file.content_hash IS NULL AND (file.hash_error IS NULL OR $1::boolean)
"""

LIST_UNHASHED = """
SELECT file.file_id, file.source_key, file.hash_error
FROM registry.files AS file
WHERE
    file.content_hash IS NULL AND (file.hash_error IS NULL OR $1::boolean) AND file.file_id > $2
ORDER BY file.file_id
LIMIT $3
"""

FIND_UNHASHED = """
SELECT file.file_id, file.source_key, file.hash_error
FROM registry.files AS file
WHERE
    file.file_id = $1 AND file.content_hash IS NULL
    AND (file.user_id = $2 OR file.visitor_session_id = $3)
"""

# An owner who has the same bytes in another file keeps both: others know them by their ids.
ATTACH_FILE = """
UPDATE registry.files AS file
SET
    content_hash = $2,
    size_bytes = $3,
    hash_error = NULL,
    forced = EXISTS (
        SELECT 1
        FROM registry.files AS other
        WHERE
            other.content_hash = $2 AND NOT other.forced
            AND (other.user_id = file.user_id OR other.visitor_session_id = file.visitor_session_id)
    )
WHERE file.file_id = $1 AND file.content_hash IS NULL
RETURNING file.file_id
"""

NOTE_HASH_ERROR = """
UPDATE registry.files AS file
SET hash_error = $2
WHERE file.file_id = $1 AND file.content_hash IS NULL
"""


@dataclass(frozen=True, kw_only=True)
class UnhashedFile:
    """A file whose bytes are in the object store under a key of somebody else."""

    file_id: UUID
    source_key: str
    hash_error: str | None


class BackfillStore:
    """Files on their way to becoming like all others."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count_unhashed(self, *, retry_failed: bool) -> int:
        """How many files there are to do."""
        async with self._database.connection() as connection:
            return int(await connection.fetchval(COUNT_UNHASHED, retry_failed))

    async def list_unhashed(
        self, *, retry_failed: bool, after: UUID, most: int
    ) -> list[UnhashedFile]:
        """The next files to do, by id."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_UNHASHED, retry_failed, after, most)
        return [UnhashedFile(**dict(row)) for row in rows]

    async def find_unhashed(self, owner: Owner, file_id: UUID) -> UnhashedFile | None:
        """An owner's file, if it has no hash."""
        values = (file_id, owner.user_id, owner.visitor_session_id)
        async with self._database.connection() as connection:
            row = await connection.fetchrow(FIND_UNHASHED, *values)
        return UnhashedFile(**dict(row)) if row else None

    async def attach(self, file_id: UUID, received: ReceivedPdf) -> bool:
        """Make the file refer to its document; false when somebody was quicker."""
        async with self._database.transaction() as connection:
            if not await connection.fetch(LOCK_DOCUMENTS, [received.pdf_hash]):
                raise DocumentGone
            values = (file_id, received.pdf_hash, received.size_bytes)
            if await connection.fetchval(ATTACH_FILE, *values) is None:
                return False
            await connection.execute(SET_FILE_REFERENCE, file_id, received.pdf_hash)
            await connection.execute(COUNT_REFERENCES, [received.pdf_hash], [1])
        return True

    async def note_hash_error(self, file_id: UUID, reason: str) -> None:
        """Remember why a file cannot be hashed."""
        async with self._database.connection() as connection:
            await connection.execute(NOTE_HASH_ERROR, file_id, reason)
