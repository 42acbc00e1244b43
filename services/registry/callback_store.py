"""SQL about callbacks: waiting for a document, due, delivered or given up."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from services.runtime.database import Database

# A predicate, not an event: nothing that happens at the same time can leave one behind.
RIPEN_CALLBACKS = """
UPDATE registry.callbacks AS callback
SET state = 'due', run_after = now()
FROM registry.files AS file
INNER JOIN registry.canonical_documents AS document ON document.pdf_hash = file.content_hash
WHERE
    callback.state = 'waiting' AND file.file_id = callback.file_id
    AND document.processed_at IS NOT NULL
"""

# The next attempt is put off first: whoever dies in the middle leaves it to another. A document may
# have been processed for somebody else, earlier: that is not told.
CLAIM_CALLBACKS = """
UPDATE registry.callbacks AS callback
SET attempts = callback.attempts + 1, run_after = now() + $1::interval
FROM registry.files AS file
INNER JOIN registry.canonical_documents AS document ON document.pdf_hash = file.content_hash
WHERE
    callback.callback_id IN (
        SELECT due.callback_id
        FROM registry.callbacks AS due
        INNER JOIN registry.files AS owned ON owned.file_id = due.file_id
        INNER JOIN registry.canonical_documents AS held ON held.pdf_hash = owned.content_hash
        WHERE due.state = 'due' AND due.run_after <= now() AND held.processed_at IS NOT NULL
        ORDER BY due.run_after
        LIMIT $2
        FOR UPDATE OF due SKIP LOCKED
    )
    AND file.file_id = callback.file_id
RETURNING
    callback.callback_id, callback.url, callback.attempts, file.file_id, file.content_hash,
    document.total_pages, greatest(document.processed_at, callback.created_at) AS processed_at,
    (
        SELECT count(*)
        FROM registry.canonical_page_metadata AS page
        WHERE page.pdf_hash = document.pdf_hash AND page.error_reason IS NOT NULL
    ) AS broken_pages
"""

# Fenced by the attempt: a claim that ran out cannot undo what the next one did.
END_CALLBACK = """
UPDATE registry.callbacks AS callback
SET state = $3, ended_at = now(), run_after = NULL, last_error = $4
WHERE callback.callback_id = $1 AND callback.attempts = $2 AND callback.state = 'due'
"""

RETRY_CALLBACK = """
UPDATE registry.callbacks AS callback
SET run_after = now() + $3::interval, last_error = $4
WHERE callback.callback_id = $1 AND callback.attempts = $2 AND callback.state = 'due'
"""


@dataclass(frozen=True, kw_only=True)
class DueCallback:
    """Somebody to be told that a file has been processed."""

    callback_id: UUID
    url: str
    attempts: int
    file_id: UUID
    content_hash: str
    total_pages: int
    processed_at: datetime
    broken_pages: int


class CallbackStore:
    """Callbacks and how they went."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim_callbacks(self, *, lasting: timedelta, most: int) -> list[DueCallback]:
        """Those to be delivered now, ours for a while."""
        async with self._database.transaction() as connection:
            await connection.execute(RIPEN_CALLBACKS)
            rows = await connection.fetch(CLAIM_CALLBACKS, lasting, most)
        return [DueCallback(**dict(row)) for row in rows]

    async def end_callback(self, due: DueCallback, *, error: str | None) -> None:
        """Delivered, or given up because of an error."""
        state = "delivered" if error is None else "failed"
        async with self._database.connection() as connection:
            await connection.execute(END_CALLBACK, due.callback_id, due.attempts, state, error)

    async def retry_callback(self, due: DueCallback, *, after: timedelta, error: str) -> None:
        """Try again later."""
        async with self._database.connection() as connection:
            await connection.execute(RETRY_CALLBACK, due.callback_id, due.attempts, after, error)
