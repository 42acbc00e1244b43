"""SQL about documents whose pages nobody has looked at yet."""

from dataclasses import dataclass
from datetime import timedelta

from services.runtime.database import Database

# Taken for a while: whoever dies over it leaves it to another.
CLAIM_DOCUMENT = """
UPDATE registry.canonical_documents AS document
SET
    processing_until = now() + $1::interval,
    processing_attempts = document.processing_attempts + 1
WHERE
    document.pdf_hash = (
        SELECT waiting.pdf_hash
        FROM registry.canonical_documents AS waiting
        WHERE
            waiting.processed_at IS NULL AND waiting.reference_count > 0
            AND (waiting.processing_until IS NULL OR waiting.processing_until < now())
        ORDER BY waiting.created_at
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    )
RETURNING document.pdf_hash, document.total_pages, document.processing_attempts
"""

LIST_UNKNOWN_PAGES = """
SELECT number
FROM registry.canonical_documents AS document
CROSS JOIN generate_series(1, document.total_pages) AS number
WHERE
    document.pdf_hash = $1
    AND NOT EXISTS (
        SELECT 1
        FROM registry.canonical_page_metadata AS page
        WHERE page.pdf_hash = document.pdf_hash AND page.page = number
    )
ORDER BY number
LIMIT $2
"""

# Fenced by the attempt: a claim that ran out cannot undo what the next one did.
PUT_OFF_DOCUMENT = """
UPDATE registry.canonical_documents AS document
SET
    processing_until = now() + $3::interval,
    processing_attempts = document.processing_attempts - 1
WHERE
    document.pdf_hash = $1 AND document.processing_attempts = $2
    AND document.processed_at IS NULL
"""

END_PROCESSING = """
UPDATE registry.canonical_documents AS document
SET processed_at = now(), processing_until = NULL
WHERE document.pdf_hash = $1 AND document.processed_at IS NULL
"""


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A document to look at, ours for a while."""

    pdf_hash: str
    total_pages: int
    processing_attempts: int


class ProcessStore:
    """Documents waiting to be looked at."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_document(self, *, lasting: timedelta) -> Claimed | None:
        """The oldest document nobody looks at."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(CLAIM_DOCUMENT, lasting)
        return Claimed(**dict(row)) if row else None

    async def list_unknown_pages(self, pdf_hash: str, *, most: int) -> list[int]:
        """Pages nothing is known of, from the front."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_UNKNOWN_PAGES, pdf_hash, most)
        return [row["number"] for row in rows]

    async def put_off(self, claimed: Claimed, *, lasting: timedelta) -> None:
        """Give a document back as if it had not been tried, for later."""
        async with self._database.connection() as connection:
            await connection.execute(
                PUT_OFF_DOCUMENT, claimed.pdf_hash, claimed.processing_attempts, lasting
            )

    async def end_processing(self, pdf_hash: str) -> None:
        """Everything has been looked at that ever will be without being asked for."""
        async with self._database.connection() as connection:
            await connection.execute(END_PROCESSING, pdf_hash)
