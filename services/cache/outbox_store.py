"""SQL for the outbox: refunds that are due, until Quota has acknowledged them."""

from collections.abc import Sequence

import asyncpg

from services.cache.domain import Outcome, Refund
from services.runtime.database import Database

READ_REFUNDS = """
SELECT outbox_id, request_id, user_id, reason, served_as, generation_id
FROM cache.outbox
WHERE outbox_id > $1
ORDER BY outbox_id
LIMIT $2
"""

DELETE_REFUNDS = "DELETE FROM cache.outbox WHERE outbox_id = ANY($1::bigint[])"


class OutboxStore:
    """Refunds on their way."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_refunds(self, *, after: int, limit: int) -> list[Refund]:
        async with self._database.connection() as connection:
            return [refund_from(row) for row in await connection.fetch(READ_REFUNDS, after, limit)]

    async def delete_refunds(self, outbox_ids: Sequence[int]) -> None:
        async with self._database.connection() as connection:
            await connection.execute(DELETE_REFUNDS, outbox_ids)


def refund_from(row: asyncpg.Record) -> Refund:
    return Refund(
        outbox_id=row["outbox_id"],
        request_id=row["request_id"],
        user_id=row["user_id"],
        reason=row["reason"],
        served_as=Outcome(row["served_as"]) if row["served_as"] else None,
        generation_id=row["generation_id"],
    )
