"""SQL for what went wrong with leases, counted by day."""

from datetime import date

from services.cache.job_domain import DayOfLosses, Loss
from services.runtime.database import Connection, Database

# The last statement of its transaction: whoever counts on the same day waits for no more than that.
ADD_LOSSES = """
INSERT INTO cache.daily_losses AS known (day, what, number)
VALUES ((now() AT TIME ZONE 'UTC')::date, $1, $2)
ON CONFLICT (day, what) DO UPDATE SET number = known.number + excluded.number
"""

LIST_LOSSES = """
SELECT day, what, number
FROM cache.daily_losses
WHERE day > (now() AT TIME ZONE 'UTC')::date - $1::integer
ORDER BY day, what
"""


def leases_expired(*, ended_by_worker: bool) -> str:
    """SQL for how many leases of a generation had run out when it ended.

    Every lease was given back, failed, led to the result of a worker, or ran out.
    """
    last_one = " - 1" if ended_by_worker else ""
    return f"attempts - released - jsonb_array_length(failures){last_one}"


async def add_losses(connection: Connection, what: Loss, number: int) -> None:
    """Count them, in the transaction that ends their generations."""
    if number > 0:
        await connection.execute(ADD_LOSSES, what, number)


class LossStore:
    """What went wrong with leases, day by day."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_losses(self, days: int) -> list[DayOfLosses]:
        """Of so many days, today included; oldest first."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_LOSSES, days)
        by_day: dict[date, dict[Loss, int]] = {}
        for row in rows:
            by_day.setdefault(row["day"], {})[Loss(row["what"])] = row["number"]
        return [DayOfLosses(day=day, counts=counts) for day, counts in by_day.items()]
