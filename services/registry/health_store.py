"""The Registry's invariants as SQL: each of INVARIANTS returns no row while all is well."""

from collections.abc import Sequence
from uuid import UUID

from services.registry.domain import Finding, Problem
from services.registry.store import LOCK_DOCUMENTS, SET_FILE_REFERENCE
from services.runtime.database import Database

# Reference count = references.
COUNT_DRIFT = """
SELECT
    document.pdf_hash, NULL::uuid AS file_id, document.reference_count AS counted,
    count(reference.ref_id) AS actual
FROM registry.canonical_documents AS document
LEFT JOIN registry.canonical_document_refs AS reference ON reference.pdf_hash = document.pdf_hash
GROUP BY document.pdf_hash
HAVING document.reference_count <> count(reference.ref_id)
ORDER BY document.pdf_hash
"""

# Every file with a hash has one reference, to its own document.
FILE_WITHOUT_REFERENCE = """
SELECT file.content_hash AS pdf_hash, file.file_id, 0::bigint AS counted, 0::bigint AS actual
FROM registry.files AS file
LEFT JOIN registry.canonical_document_refs AS reference
    ON reference.ref_type = 'file' AND reference.ref_id = file.file_id
WHERE
    file.content_hash IS NOT NULL AND reference.pdf_hash IS DISTINCT FROM file.content_hash
ORDER BY file.file_id
"""

# Every reference of a file has its file.
REFERENCE_WITHOUT_FILE = """
SELECT
    reference.pdf_hash, reference.ref_id AS file_id, 0::bigint AS counted, 0::bigint AS actual
FROM registry.canonical_document_refs AS reference
WHERE
    reference.ref_type = 'file'
    AND NOT EXISTS (
        SELECT 1
        FROM registry.files AS file
        WHERE file.file_id = reference.ref_id AND file.content_hash IS NOT NULL
    )
ORDER BY reference.ref_id
"""

INVARIANTS = {
    Problem.COUNT_DRIFT: COUNT_DRIFT,
    Problem.FILE_WITHOUT_REFERENCE: FILE_WITHOUT_REFERENCE,
    Problem.REFERENCE_WITHOUT_FILE: REFERENCE_WITHOUT_FILE,
}

COUNT_ALL = """
SELECT
    (SELECT count(*) FROM registry.canonical_documents) AS documents,
    (SELECT count(*) FROM registry.canonical_document_refs) AS references
"""

# Documents somebody holds: their bytes must be there.
LIST_HELD_DOCUMENTS = """
SELECT document.pdf_hash, document.size_bytes
FROM registry.canonical_documents AS document
WHERE document.reference_count > 0 AND document.pdf_hash > $1
ORDER BY document.pdf_hash
LIMIT $2
"""

FIND_FILE_HASHES = """
SELECT file.content_hash AS pdf_hash
FROM registry.files AS file
WHERE file.file_id = $1
UNION
SELECT reference.pdf_hash
FROM registry.canonical_document_refs AS reference
WHERE reference.ref_type = 'file' AND reference.ref_id = $1
"""

FIND_CONTENT_HASH = """
SELECT file.content_hash
FROM registry.files AS file
WHERE file.file_id = $1
"""

REMOVE_FILE_REFERENCE = """
DELETE FROM registry.canonical_document_refs AS reference
WHERE reference.ref_type = 'file' AND reference.ref_id = $1
"""

RECOUNT = """
UPDATE registry.canonical_documents AS document
SET
    reference_count = actual.number,
    unreferenced_at = CASE
        WHEN actual.number = 0 THEN coalesce(document.unreferenced_at, now())
    END,
    collecting_at = CASE WHEN actual.number = 0 THEN document.collecting_at END
FROM (
    SELECT wanted.pdf_hash, count(reference.ref_id) AS number
    FROM unnest($1::text[]) AS wanted (pdf_hash)
    LEFT JOIN registry.canonical_document_refs AS reference
        ON reference.pdf_hash = wanted.pdf_hash
    GROUP BY wanted.pdf_hash
) AS actual
WHERE document.pdf_hash = actual.pdf_hash
"""


class HealthStore:
    """Finds what must not be, and mends it under the same locks as everybody else takes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count_all(self) -> tuple[int, int]:
        """How many documents and references there are."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(COUNT_ALL)
        assert row is not None
        return row["documents"], row["references"]

    async def find(self, problem: Problem) -> list[Finding]:
        """What violates an invariant now."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(INVARIANTS[problem])
        return [Finding(problem=problem, **dict(row)) for row in rows]

    async def list_held_documents(self, *, after: str, most: int) -> list[tuple[str, int]]:
        """Hash and size of documents that must have bytes, by hash."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_HELD_DOCUMENTS, after, most)
        return [(row["pdf_hash"], row["size_bytes"]) for row in rows]

    async def recount(self, pdf_hash: str) -> None:
        """Make the count of a document what its references say."""
        async with self._database.transaction() as connection:
            await connection.fetch(LOCK_DOCUMENTS, [pdf_hash])
            await connection.execute(RECOUNT, [pdf_hash])

    async def mend_file(self, file_id: UUID) -> None:
        """Make the reference of a file what the file says, and both counts what they should be."""
        async with self._database.transaction() as connection:
            rows = await connection.fetch(FIND_FILE_HASHES, file_id)
            hashes: Sequence[str] = sorted(row["pdf_hash"] for row in rows if row["pdf_hash"])
            await connection.fetch(LOCK_DOCUMENTS, hashes)
            content_hash = await connection.fetchval(FIND_CONTENT_HASH, file_id)
            if content_hash is None:
                await connection.execute(REMOVE_FILE_REFERENCE, file_id)
            elif content_hash in hashes:  # else it was replaced just now, correctly
                await connection.execute(SET_FILE_REFERENCE, file_id, content_hash)
            await connection.execute(RECOUNT, hashes)
