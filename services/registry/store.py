"""SQL about documents, files and references; one public method is one transaction.

Whoever adds or removes a reference locks the document's row first: count and rows never part.
"""

from uuid import UUID, uuid4

import asyncpg

from services.registry.domain import (
    Document,
    File,
    Holding,
    Note,
    Owner,
    ReceivedPdf,
    Registered,
    UploadHeader,
)
from services.registry.errors import FileIdReused, FileNotFound
from services.registry.revocation_store import add_revocations
from services.runtime.database import Connection, Database

# Locks the row whether it is new or not. A document that is new has no reference yet.
LOCK_OR_ADD_DOCUMENT = """
INSERT INTO registry.canonical_documents AS document (pdf_hash, size_bytes, total_pages)
VALUES ($1, $2, $3)
ON CONFLICT (pdf_hash) DO UPDATE SET size_bytes = document.size_bytes
"""

LOCK_DOCUMENT = """
SELECT document.pdf_hash
FROM registry.canonical_documents AS document
WHERE document.pdf_hash = $1
FOR UPDATE
"""

FIND_DOCUMENT = """
SELECT document.pdf_hash, document.total_pages, document.reference_count
FROM registry.canonical_documents AS document
WHERE document.pdf_hash = $1
"""

FIND_FILE = """
SELECT
    file.file_id, file.user_id, file.visitor_session_id, file.content_hash, file.filename,
    file.size_bytes, file.created_at, document.total_pages, document.reference_count
FROM registry.files AS file
INNER JOIN registry.canonical_documents AS document ON document.pdf_hash = file.content_hash
WHERE file.file_id = $1
"""

# The unforced file first: it is the one other uploads of the same bytes have been answered with.
FIND_HELD = """
SELECT
    file.file_id, file.user_id, file.visitor_session_id, file.content_hash, file.filename,
    file.size_bytes, file.created_at, document.total_pages, document.reference_count
FROM registry.files AS file
INNER JOIN registry.canonical_documents AS document ON document.pdf_hash = file.content_hash
WHERE file.content_hash = $1 AND (file.user_id = $2 OR file.visitor_session_id = $3)
ORDER BY file.forced, file.created_at, file.file_id
LIMIT 1
"""

ADD_FILE = """
INSERT INTO registry.files
    (file_id, user_id, visitor_session_id, content_hash, filename, size_bytes, forced)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING file_id
"""

ADD_FILE_REFERENCE = """
INSERT INTO registry.canonical_document_refs (ref_type, ref_id, pdf_hash)
VALUES ('file', $1, $2)
"""

COUNT_REFERENCE_ADDED = """
UPDATE registry.canonical_documents AS document
SET reference_count = document.reference_count + 1, unreferenced_at = NULL
WHERE document.pdf_hash = $1
"""

REMOVE_FILE = """
DELETE FROM registry.files AS file
WHERE file.file_id = $1
RETURNING file.file_id
"""

REMOVE_FILE_REFERENCE = """
DELETE FROM registry.canonical_document_refs AS reference
WHERE reference.ref_type = 'file' AND reference.ref_id = $1
RETURNING reference.pdf_hash
"""

COUNT_REFERENCE_REMOVED = """
UPDATE registry.canonical_documents AS document
SET
    reference_count = document.reference_count - 1,
    unreferenced_at = CASE WHEN document.reference_count = 1 THEN now() END
WHERE document.pdf_hash = $1
"""


class RegistryStore:
    """Documents, files and references."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register(self, header: UploadHeader, received: ReceivedPdf) -> Registered:
        """Make the owner hold the document, once; the bytes are in the object store already."""
        async with self._database.transaction() as connection:
            if held := await _find_same(connection, header, received):
                return Registered(holding=held, note=Note.DEDUPLICATED)
            await connection.execute(
                LOCK_OR_ADD_DOCUMENT, received.pdf_hash, received.size_bytes, received.total_pages
            )
            # Whoever held the lock before us may have been this owner's other upload.
            if held := await _find_same(connection, header, received):
                return Registered(holding=held, note=Note.DUPLICATE_DETECTED)
            holding = await _add_file(connection, header, received)
            return Registered(holding=holding, note=Note.CREATED)

    async def get_file(self, owner: Owner, file_id: UUID) -> Holding:
        """An owner's file with its document."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(FIND_FILE, file_id)
        if row is None or _owner(row) != owner:
            raise FileNotFound
        return _holding(row)

    async def delete_file(self, owner: Owner, file_id: UUID) -> None:
        """Remove an owner's file and its reference."""
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(FIND_FILE, file_id)
            if row is None or _owner(row) != owner:
                raise FileNotFound
            await connection.fetchval(LOCK_DOCUMENT, row["content_hash"])
            if await connection.fetchval(REMOVE_FILE, file_id) is None:
                raise FileNotFound  # another call removed it while we waited for the lock
            referred = await connection.fetchval(REMOVE_FILE_REFERENCE, file_id)
            await connection.execute(COUNT_REFERENCE_REMOVED, referred)
            await add_revocations(connection, [referred])


async def _find_same(
    connection: Connection, header: UploadHeader, received: ReceivedPdf
) -> Holding | None:
    """The file this upload would make again, if there is one."""
    owner = header.owner
    if header.file_id and (row := await connection.fetchrow(FIND_FILE, header.file_id)):
        if _owner(row) != owner or row["content_hash"] != received.pdf_hash:
            raise FileIdReused
        return _holding(row)
    if header.force:
        return None
    row = await connection.fetchrow(
        FIND_HELD, received.pdf_hash, owner.user_id, owner.visitor_session_id
    )
    return _holding(row) if row else None


async def _add_file(connection: Connection, header: UploadHeader, received: ReceivedPdf) -> Holding:
    file_id = await connection.fetchval(
        ADD_FILE,
        header.file_id or uuid4(),
        header.owner.user_id,
        header.owner.visitor_session_id,
        received.pdf_hash,
        header.filename,
        received.size_bytes,
        header.force,
    )
    if file_id is None:
        raise FileIdReused  # taken in this moment, for another document: ours is locked
    await connection.execute(ADD_FILE_REFERENCE, file_id, received.pdf_hash)
    await connection.execute(COUNT_REFERENCE_ADDED, received.pdf_hash)
    row = await connection.fetchrow(FIND_FILE, file_id)
    assert row is not None
    return _holding(row)


def _owner(row: asyncpg.Record) -> Owner:
    return Owner(user_id=row["user_id"], visitor_session_id=row["visitor_session_id"])


def _holding(row: asyncpg.Record) -> Holding:
    file = File(
        file_id=row["file_id"],
        pdf_hash=row["content_hash"],
        filename=row["filename"],
        size_bytes=row["size_bytes"],
        created_at=row["created_at"],
    )
    document = Document(
        pdf_hash=row["content_hash"],
        total_pages=row["total_pages"],
        reference_count=row["reference_count"],
    )
    return Holding(file=file, document=document)
