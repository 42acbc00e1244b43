"""SQL for reading a user's ledger, behind the fence that shows nobody else's rows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from services.quota.domain import Charge, LedgerLine
from services.runtime.database import Connection, Database

# From here to the end of the transaction, row-level security shows this user's rows alone.
ACT_FOR_USER = """
SELECT set_config('role', 'glossa_quota_user', true), set_config('glossa.user_id', $1, true)
"""

LIST_LEDGER = """
SELECT entry.entry_id, entry.created_at, entry.kind, entry.units, entry.reason, entry.request_id,
       request.outcome, request.generation_id, request.pdf_hash, request.page, request.locale,
       request.effective_mode, request.endpoint
FROM quota.ledger_entries AS entry
LEFT JOIN quota.explain_requests AS request ON request.request_id = entry.request_id
WHERE entry.user_id = $1 AND entry.entry_id < $2
ORDER BY entry.entry_id DESC
LIMIT $3
"""

# A void was never charged.
READ_CHARGE = """
SELECT request.quota_units, request.status, request.outcome, request.generation_id,
       request.pdf_hash, request.page, request.locale, request.effective_mode,
       request.created_at, request.refunded_at
FROM quota.explain_requests AS request
WHERE request.request_id = $1 AND request.user_id = $2 AND request.status <> 'void'
"""


@asynccontextmanager
async def acting_for(database: Database, user_id: str) -> AsyncIterator[Connection]:
    """Read as a role that sees this user's rows alone."""
    async with database.transaction() as connection:
        await connection.execute(ACT_FOR_USER, user_id)
        yield connection


class LedgerStore:
    """What users may read of the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_ledger(self, user_id: str, *, before: int, most: int) -> list[LedgerLine]:
        """Entries older than the one named `before`, newest first."""
        async with acting_for(self._database, user_id) as connection:
            rows = await connection.fetch(LIST_LEDGER, user_id, before, most)
        return [LedgerLine(*row) for row in rows]

    async def read_charge(self, user_id: str, request_id: UUID) -> Charge | None:
        async with acting_for(self._database, user_id) as connection:
            row = await connection.fetchrow(READ_CHARGE, request_id, user_id)
        return Charge(*row) if row else None
