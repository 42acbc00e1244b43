"""SQL about files and the documents they refer to; one public method is one transaction.

Whoever adds or removes a reference locks the rows of all documents concerned first, in the order
of their hashes: count and rows never part, and nobody waits in a circle.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID, uuid4

import asyncpg

from services.registry.domain import (
    File,
    Holding,
    Note,
    Owner,
    ReceivedPdf,
    Registered,
    UploadHeader,
)
from services.registry.errors import DocumentGone, FileIdReused, FileNotFound
from services.registry.file_rows import document_of, file_of, owner_of
from services.registry.revocation_store import add_revocations
from services.runtime.database import Connection, Database

# Before the bytes are put: from here on they are known, and safe from collection for the grace
# time. Waits for a collection under way, and undoes one that has only been announced.
PIN_DOCUMENT = """
INSERT INTO registry.canonical_documents AS document
    (pdf_hash, size_bytes, total_pages, processed_at)
VALUES ($1, $2, $3, CASE WHEN $4::boolean THEN now() END)
ON CONFLICT (pdf_hash) DO UPDATE SET unreferenced_at = now(), collecting_at = NULL
WHERE document.reference_count = 0
"""

LOCK_DOCUMENTS = """
SELECT document.pdf_hash
FROM registry.canonical_documents AS document
WHERE document.pdf_hash = any($1::text[]) AND document.collecting_at IS NULL
ORDER BY document.pdf_hash
FOR UPDATE
"""

COUNT_REFERENCES = """
UPDATE registry.canonical_documents AS document
SET
    reference_count = document.reference_count + change.difference,
    unreferenced_at = CASE WHEN document.reference_count + change.difference = 0 THEN now() END
FROM unnest($1::text[], $2::bigint[]) AS change (pdf_hash, difference)
WHERE document.pdf_hash = change.pdf_hash
"""

_FILE_COLUMNS = """
    file.file_id, file.user_id, file.visitor_session_id, file.content_hash, file.filename,
    file.size_bytes, file.created_at, file.forced, document.total_pages, document.reference_count,
    document.size_bytes AS document_size_bytes, document.processed_at,
    callback.url, callback.state, callback.attempts, callback.last_error
FROM registry.files AS file
LEFT JOIN registry.canonical_documents AS document ON document.pdf_hash = file.content_hash
LEFT JOIN LATERAL (
    SELECT newest.url, newest.state, newest.attempts, newest.last_error
    FROM registry.callbacks AS newest
    WHERE newest.file_id = file.file_id
    ORDER BY newest.created_at DESC
    LIMIT 1
) AS callback ON true
"""

FIND_FILE = f"""
SELECT {_FILE_COLUMNS}
WHERE file.file_id = $1
"""

# The unforced file first: it is the one other uploads of the same bytes have been answered with.
FIND_HELD = f"""
SELECT {_FILE_COLUMNS}
WHERE file.content_hash = $1 AND (file.user_id = $2 OR file.visitor_session_id = $3)
ORDER BY file.forced, file.created_at, file.file_id
LIMIT $4
"""

LIST_FILES = f"""
SELECT {_FILE_COLUMNS}
WHERE
    (file.user_id = $1 OR file.visitor_session_id = $2)
    AND (file.created_at, file.file_id) < ($3::timestamptz, $4::uuid)
ORDER BY file.created_at DESC, file.file_id DESC
LIMIT $5
"""

ADD_FILE = """
INSERT INTO registry.files
    (file_id, user_id, visitor_session_id, content_hash, filename, size_bytes, forced)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING file_id
"""

# A file whose owner holds the new bytes already, in another file, stays beside that one.
REPLACE_FILE = """
UPDATE registry.files AS file
SET
    content_hash = $3,
    size_bytes = $4,
    filename = $5,
    hash_error = NULL,
    forced = EXISTS (
        SELECT 1
        FROM registry.files AS other
        WHERE
            other.content_hash = $3 AND other.file_id <> file.file_id AND NOT other.forced
            AND (other.user_id = file.user_id OR other.visitor_session_id = file.visitor_session_id)
    )
WHERE file.file_id = $1 AND file.content_hash IS NOT DISTINCT FROM $2
RETURNING file.file_id
"""

SET_FILE_REFERENCE = """
INSERT INTO registry.canonical_document_refs AS reference (ref_type, ref_id, pdf_hash)
VALUES ('file', $1, $2)
ON CONFLICT (ref_type, ref_id) DO UPDATE SET pdf_hash = excluded.pdf_hash
"""

ADD_CALLBACK = """
INSERT INTO registry.callbacks (callback_id, file_id, url)
VALUES ($1, $2, $3)
"""

LIST_CONTENT_HASHES = """
SELECT file.content_hash
FROM registry.files AS file
WHERE file.file_id = any($1::uuid[]) AND (file.user_id = $2 OR file.visitor_session_id = $3)
"""

# Only files of documents that are locked; one that was given other bytes meanwhile is left.
REMOVE_FILES = """
DELETE FROM registry.files AS file
WHERE
    file.file_id = any($1::uuid[]) AND (file.user_id = $2 OR file.visitor_session_id = $3)
    AND (file.content_hash IS NULL OR file.content_hash = any($4::text[]))
RETURNING file.file_id, file.content_hash
"""

REMOVE_FILE_REFERENCES = """
DELETE FROM registry.canonical_document_refs AS reference
WHERE reference.ref_type = 'file' AND reference.ref_id = any($1::uuid[])
"""


Attempt = Callable[[Connection, UploadHeader, ReceivedPdf], Awaitable[Registered]]


class RegistryStore:
    """Files, and the documents they refer to."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pin(self, received: ReceivedPdf, *, processed: bool) -> None:
        """Announce bytes that are about to be put; `processed` when nobody will look at them."""
        facts = (received.pdf_hash, received.size_bytes, received.total_pages)
        async with self._database.connection() as connection:
            await connection.execute(PIN_DOCUMENT, *facts, processed)

    async def register(self, header: UploadHeader, received: ReceivedPdf) -> Registered:
        """Make the owner hold the document, once; DocumentGone when its bytes may be gone."""
        return await self._until_done(_register, header, received)

    async def replace(self, header: UploadHeader, received: ReceivedPdf) -> Registered:
        """Give an owner's file other bytes, and its reference another document."""
        assert header.file_id is not None
        return await self._until_done(_replace, header, received)

    async def _until_done(
        self, attempt: Attempt, header: UploadHeader, received: ReceivedPdf
    ) -> Registered:
        """What was found may be gone before it is held: then look again, from the beginning."""
        while True:
            with suppress(_FileGone):
                async with self._database.transaction() as connection:
                    return await attempt(connection, header, received)

    async def get_file(self, owner: Owner, file_id: UUID) -> Holding:
        """An owner's file with its document."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(FIND_FILE, file_id)
        if row is None or owner_of(row) != owner or row["content_hash"] is None:
            raise FileNotFound
        return _holding(row)

    async def get_holdings(self, owner: Owner, pdf_hash: str, *, most: int) -> list[Holding]:
        """An owner's files of one document, at least one."""
        values = (pdf_hash, owner.user_id, owner.visitor_session_id, most)
        async with self._database.connection() as connection:
            rows = await connection.fetch(FIND_HELD, *values)
        if not rows:
            raise FileNotFound
        return [_holding(row) for row in rows]

    async def list_files(
        self, owner: Owner, *, before: tuple[datetime, UUID], most: int
    ) -> list[File]:
        """An owner's files from a place in the list on, newest first."""
        values = (owner.user_id, owner.visitor_session_id, *before, most)
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_FILES, *values)
        return [file_of(row) for row in rows]

    async def delete_files(self, owner: Owner, file_ids: Sequence[UUID]) -> list[UUID]:
        """Remove an owner's files and their references; answers with those that were there."""
        deleted: list[UUID] = []
        while True:
            async with self._database.transaction() as connection:
                found, gone = await _delete(connection, owner, file_ids)
            deleted += gone
            if found == len(gone):
                return deleted


class _FileGone(Exception):
    """The file was deleted or changed while we waited. Never leaves this module."""


async def _register(
    connection: Connection, header: UploadHeader, received: ReceivedPdf
) -> Registered:
    registered = await _find_or_add(connection, header, received)
    if header.callback_url is None:
        return registered
    file_id = registered.holding.file.file_id
    await _add_callback(connection, file_id, header.callback_url)
    return Registered(holding=await _get(connection, file_id), note=registered.note)


async def _add_callback(connection: Connection, file_id: UUID, url: str) -> None:
    try:
        await connection.execute(ADD_CALLBACK, uuid4(), file_id, url)
    except asyncpg.ForeignKeyViolationError:
        raise _FileGone from None


async def _find_or_add(
    connection: Connection, header: UploadHeader, received: ReceivedPdf
) -> Registered:
    if held := await _find_same(connection, header, received):
        ready = held.document.processed_at is not None
        note = Note.DEDUPLICATED if ready else Note.DUPLICATE_UPLOAD
        return Registered(holding=held, note=note)
    await _lock(connection, [received.pdf_hash])
    # Whoever held the lock before us may have been this owner's other upload.
    if held := await _find_same(connection, header, received):
        return Registered(holding=held, note=Note.DUPLICATE_DETECTED)
    return Registered(holding=await _add_file(connection, header, received), note=Note.CREATED)


async def _lock(connection: Connection, pdf_hashes: Sequence[str]) -> None:
    """All of these documents, or DocumentGone when one is being collected."""
    locked = await connection.fetch(LOCK_DOCUMENTS, pdf_hashes)
    if len(locked) < len(set(pdf_hashes)):
        raise DocumentGone


async def _find_same(
    connection: Connection, header: UploadHeader, received: ReceivedPdf
) -> Holding | None:
    """The file this upload would make again, if there is one."""
    owner = header.owner
    if header.file_id and (row := await connection.fetchrow(FIND_FILE, header.file_id)):
        if owner_of(row) != owner or row["content_hash"] != received.pdf_hash:
            raise FileIdReused
        return _holding(row)
    if header.force:
        return None
    values = (received.pdf_hash, owner.user_id, owner.visitor_session_id, 1)
    row = await connection.fetchrow(FIND_HELD, *values)
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
    await connection.execute(SET_FILE_REFERENCE, file_id, received.pdf_hash)
    await connection.execute(COUNT_REFERENCES, [received.pdf_hash], [1])
    return await _get(connection, file_id)


async def _replace(
    connection: Connection, header: UploadHeader, received: ReceivedPdf
) -> Registered:
    row = await connection.fetchrow(FIND_FILE, header.file_id)
    if row is None or owner_of(row) != header.owner:
        raise FileNotFound
    old, new = row["content_hash"], received.pdf_hash
    if old != new:
        await _lock(connection, [new] if old is None else sorted((old, new)))
        values = (header.file_id, old, new, received.size_bytes, header.filename)
        if await connection.fetchval(REPLACE_FILE, *values) is None:
            raise _FileGone
        await connection.execute(SET_FILE_REFERENCE, header.file_id, new)
    assert header.file_id is not None
    if header.callback_url:
        await _add_callback(connection, header.file_id, header.callback_url)
    if old != new:
        changes = {new: 1} if old is None else {old: -1, new: 1}
        await connection.execute(COUNT_REFERENCES, list(changes), list(changes.values()))
        if old is not None:
            await add_revocations(connection, [old])
    return Registered(holding=await _get(connection, header.file_id), note=Note.REPLACED)


async def _delete(
    connection: Connection, owner: Owner, file_ids: Sequence[UUID]
) -> tuple[int, list[UUID]]:
    """How many files were found, and those that are gone now."""
    who = (owner.user_id, owner.visitor_session_id)
    found = await connection.fetch(LIST_CONTENT_HASHES, file_ids, *who)
    hashes = sorted({row["content_hash"] for row in found if row["content_hash"]})
    await connection.fetch(LOCK_DOCUMENTS, hashes)
    rows = await connection.fetch(REMOVE_FILES, file_ids, *who, hashes)
    gone = [row["file_id"] for row in rows]
    await connection.execute(REMOVE_FILE_REFERENCES, gone)
    await count_removed(connection, [row["content_hash"] for row in rows if row["content_hash"]])
    return len(found), gone


async def count_removed(connection: Connection, pdf_hashes: Sequence[str]) -> None:
    """References to these documents, as often as listed, are gone. Last in a transaction."""
    if not pdf_hashes:
        return
    distinct = sorted(set(pdf_hashes))
    differences = [-pdf_hashes.count(pdf_hash) for pdf_hash in distinct]
    await connection.execute(COUNT_REFERENCES, distinct, differences)
    await add_revocations(connection, distinct)


async def _get(connection: Connection, file_id: UUID) -> Holding:
    row = await connection.fetchrow(FIND_FILE, file_id)
    if row is None:
        raise _FileGone
    return _holding(row)


def _holding(row: asyncpg.Record) -> Holding:
    return Holding(file=file_of(row), document=document_of(row))
