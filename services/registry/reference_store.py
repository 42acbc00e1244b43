"""SQL about references that are no files: what else keeps a document."""

from collections.abc import Sequence
from uuid import UUID

from services.registry.domain import Owner
from services.registry.errors import FileNotFound, ReferenceIdReused
from services.registry.store import COUNT_REFERENCES, LOCK_DOCUMENTS, count_removed
from services.runtime.database import Connection, Database

# Found only through a file that the owner holds.
FIND_HELD_DOCUMENT = """
SELECT file.content_hash
FROM registry.files AS file
WHERE
    (file.file_id = $1 OR file.content_hash = $2)
    AND (file.user_id = $3 OR file.visitor_session_id = $4)
    AND file.content_hash IS NOT NULL
LIMIT 1
"""

ADD_REFERENCE = """
INSERT INTO registry.canonical_document_refs (ref_type, ref_id, pdf_hash)
VALUES ($1, $2, $3)
ON CONFLICT DO NOTHING
RETURNING pdf_hash
"""

FIND_REFERENCES = """
SELECT reference.ref_id, reference.pdf_hash
FROM registry.canonical_document_refs AS reference
WHERE reference.ref_type = $1 AND reference.ref_id = any($2::uuid[])
"""

# Only references to documents that are locked.
REMOVE_REFERENCES = """
DELETE FROM registry.canonical_document_refs AS reference
WHERE
    reference.ref_type = $1 AND reference.ref_id = any($2::uuid[])
    AND reference.pdf_hash = any($3::text[])
RETURNING reference.ref_id, reference.pdf_hash
"""


class ReferenceStore:
    """References made by other services."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_reference(
        self, owner: Owner, target: UUID | str, *, ref_type: str, ref_id: UUID
    ) -> tuple[str, bool]:
        """Refer to a document the owner holds; answers with it and whether that is new."""
        async with self._database.transaction() as connection:
            pdf_hash = await _held(connection, owner, target)
            await connection.fetch(LOCK_DOCUMENTS, [pdf_hash])
            # The owner may have let it go while we waited.
            if await _held(connection, owner, target) != pdf_hash:
                raise FileNotFound
            return pdf_hash, await _add(connection, ref_type, ref_id, pdf_hash)

    async def remove_references(self, ref_type: str, ref_ids: Sequence[UUID]) -> list[UUID]:
        """Remove references; answers with those that were there."""
        async with self._database.transaction() as connection:
            found = await connection.fetch(FIND_REFERENCES, ref_type, ref_ids)
            hashes = sorted({row["pdf_hash"] for row in found})
            await connection.fetch(LOCK_DOCUMENTS, hashes)
            rows = await connection.fetch(REMOVE_REFERENCES, ref_type, ref_ids, hashes)
            await count_removed(connection, [row["pdf_hash"] for row in rows])
        return [row["ref_id"] for row in rows]


async def _add(connection: Connection, ref_type: str, ref_id: UUID, pdf_hash: str) -> bool:
    """Whether the reference is new. One in the way may be removed before we have looked at it."""
    while not await connection.fetchval(ADD_REFERENCE, ref_type, ref_id, pdf_hash):
        for known in await connection.fetch(FIND_REFERENCES, ref_type, [ref_id]):
            if known["pdf_hash"] != pdf_hash:
                raise ReferenceIdReused
            return False
    await connection.execute(COUNT_REFERENCES, [pdf_hash], [1])
    return True


async def _held(connection: Connection, owner: Owner, target: UUID | str) -> str:
    file_id, pdf_hash = (target, None) if isinstance(target, UUID) else (None, target)
    values = (file_id, pdf_hash, owner.user_id, owner.visitor_session_id)
    held = await connection.fetchval(FIND_HELD_DOCUMENT, *values)
    if held is None:
        raise FileNotFound
    return str(held)
