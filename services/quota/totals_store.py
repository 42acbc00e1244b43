"""SQL of what everybody spent, saved and got back by day, read apart from charges."""

import asyncio
from datetime import UTC, date, datetime, time, timedelta

from services.quota.cost_store import READ_COSTS_BY_DAY
from services.quota.domain import Costs, DailyTotals, RefundTotal
from services.runtime.database import Database
from services.runtime.errors import DependencyDown

# Looking must not hurt: no snapshot is held for longer, and never two at a time.
BRIEF = "SET LOCAL statement_timeout = '2s'"
TURN_SECONDS = 2.0

READ_REFUNDS_BY_DAY = """
SELECT to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day,
       CASE kind WHEN 'reprice' THEN 'repriced' ELSE reason END AS reason,
       count(*) AS number, sum(units)::bigint AS units
FROM quota.ledger_entries
WHERE kind IN ('refund', 'reprice') AND created_at >= $1 AND created_at < $2
GROUP BY 1, 2
ORDER BY 1, number DESC, 2
"""


class TotalsStore:
    """Days in money and refunds."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = asyncio.Lock()

    async def list_daily_totals(self, first_day: date, last_day: date) -> list[DailyTotals]:
        """Days on which something was spent, saved or given back, oldest first."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise DependencyDown("somebody else is looking at it", reason="OVERLOADED") from None
        try:
            return await self._read(_midnight(first_day), _midnight(last_day + timedelta(days=1)))
        finally:
            self._turn.release()

    async def _read(self, begins_at: datetime, ends_at: datetime) -> list[DailyTotals]:
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            await connection.execute(BRIEF)
            costs = await connection.fetch(READ_COSTS_BY_DAY, None, begins_at, ends_at)
            refunds = await connection.fetch(READ_REFUNDS_BY_DAY, begins_at, ends_at)
        spent = {row[0]: Costs(*tuple(row)[1:]) for row in costs}
        given_back: dict[str, list[RefundTotal]] = {}
        for row in refunds:
            given_back.setdefault(row["day"], []).append(RefundTotal(*tuple(row)[1:]))
        return [
            DailyTotals(day, spent.get(day, Costs()), tuple(given_back.get(day, ())))
            for day in sorted(spent.keys() | given_back.keys())
        ]


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
