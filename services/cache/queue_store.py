"""SQL that keeps the queue moving: backoffs that are over, long waits, work left behind."""

import asyncpg

from services.cache.domain import Lane
from services.cache.generation_store import present_turn
from services.cache.job_domain import (
    Clocks,
    Failure,
    LaneReport,
    Lease,
    Loss,
    QueueReport,
    Verdict,
)
from services.cache.job_store import end_job, lease_from
from services.cache.loss_store import add_losses, leases_expired
from services.runtime.database import Database

# What has waited out its backoff is served in the present round of its lane.
READMIT_DUE = f"""
UPDATE cache.generations AS job
SET turn = {present_turn("job.lane")}
WHERE job.status = 'generating' AND job.turn IS NULL AND job.run_after <= now()
RETURNING job.generation_id
"""

# Who has waited too long goes to the front of the first lane, owners still in turns. One round
# ahead is not worth moving for, or an owner would be served twice in a round; but who has waited
# twice as long is moved even then, for a round may last for ever while new owners come.
AGE_WAITING = f"""
WITH present AS (
    SELECT {present_turn("0")} AS turn
), aged AS (
    SELECT old.generation_id,
           present.turn + row_number() OVER (PARTITION BY old.owner ORDER BY old.run_after) - 1
               AS turn
    FROM (
        SELECT generation_id, owner, run_after
        FROM cache.generations
        WHERE status = 'generating' AND turn IS NOT NULL AND run_after < now() - $1::interval
          AND (leased_until IS NULL OR leased_until < now())
        ORDER BY run_after
        LIMIT 1000
    ) AS old
    CROSS JOIN present
)
UPDATE cache.generations AS job
SET lane = 0, turn = aged.turn
FROM aged
WHERE job.generation_id = aged.generation_id AND job.status = 'generating'
  AND job.turn IS NOT NULL
  AND (job.lane > 0 OR job.turn > aged.turn + 1
       OR (job.turn > aged.turn AND job.run_after < now() - 2 * $1::interval))
RETURNING job.generation_id
"""

# Leases that ran out on their last attempt.
FIND_SPENT = """
SELECT generation_id, attempts
FROM cache.generations
WHERE status = 'generating' AND attempts - released >= $1
  AND (leased_until IS NULL OR leased_until < now())
LIMIT 1000
"""

# Jobs no worker has taken up in time; one that was given back waits anew from when it was taken up.
FIND_OVERDUE = """
SELECT generation_id, attempts
FROM cache.generations
WHERE status = 'generating' AND run_after < now() - $1::interval
  AND (started_at IS NULL OR started_at < now() - $1::interval)
  AND (leased_until IS NULL OR leased_until < now() - $1::interval)
LIMIT 1000
"""

# For the sweep: only what no worker holds, even if one has renewed since the sweep looked.
END_ABANDONED_JOB = f"""
UPDATE cache.generations
SET status = 'failed', stage = 'failed', completed_at = now(),
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = $3, error_message = $4, failed_for_good = $5
WHERE generation_id = $1 AND status = 'generating' AND attempts = $2
  AND (leased_until IS NULL OR leased_until < now())
RETURNING {leases_expired(ended_by_worker=False)}
"""

# For invalidation: whoever holds it finds its lease lost.
END_INVALID_JOB = """
UPDATE cache.generations
SET status = 'failed', stage = 'failed', completed_at = now(), invalidated = true,
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = $3, error_message = $4, failed_for_good = $5
WHERE generation_id = $1 AND status = 'generating' AND attempts = $2
RETURNING 0
"""

# Every job is in one lane, and either with a worker, in backoff or waiting. Only the oldest are
# counted, so that looking at a long queue stays cheap. A job whose lease ran out was taken up in
# time: as in the gauge, how long it has been there is nobody's wait for a worker.
READ_LANES = """
SELECT lane,
       count(*) FILTER (WHERE leased_until >= now()) AS leased,
       count(*) FILTER (WHERE turn IS NULL) AS retrying,
       count(*) FILTER (WHERE turn IS NOT NULL AND (leased_until IS NULL OR leased_until < now()))
           AS waiting,
       count(*) FILTER (WHERE turn IS NOT NULL AND leased_until < now()) AS expired,
       now() - min(run_after) FILTER (WHERE turn IS NOT NULL AND leased_until IS NULL)
           AS oldest_wait
FROM (
    SELECT lane, turn, leased_until, run_after
    FROM cache.generations
    WHERE status = 'generating'
    ORDER BY run_after
    LIMIT $1
) AS job
GROUP BY lane
"""

COUNT_REFUNDS_DUE = """
SELECT count(*) AS refunds_due, now() AS taken_at
FROM (SELECT FROM cache.outbox LIMIT $1) AS due
"""

# As far as the gauges count; the contract tells.
MOST_COUNTED = 100_000

# A hint for other replicas; polling is what is relied on.
ANNOUNCE_JOBS = "SELECT pg_notify('cache_jobs', $1)"


class QueueStore:
    """The queue as its keepers see it: upkeep, sweep and invalidation."""

    def __init__(self, database: Database, clocks: Clocks) -> None:
        self._database = database
        self._clocks = clocks

    async def readmit_due(self) -> int:
        """Let jobs whose backoff is over take their turn."""
        async with self._database.connection() as connection:
            return len(await connection.fetch(READMIT_DUE))

    async def age_waiting(self) -> int:
        """Let jobs that have waited too long go first."""
        async with self._database.connection() as connection:
            return len(await connection.fetch(AGE_WAITING, self._clocks.ageing))

    async def find_spent(self) -> list[Lease]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(FIND_SPENT, self._clocks.max_attempts)
        return [lease_from(row) for row in rows]

    async def find_overdue(self) -> list[Lease]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(FIND_OVERDUE, self._clocks.queue_wait)
        return [lease_from(row) for row in rows]

    async def end_abandoned_job(self, failure: Failure) -> Verdict:
        """End what no worker holds, with the same settlement as a worker's failure."""
        async with self._database.transaction() as connection:
            verdict = await end_job(connection, END_ABANDONED_JOB, failure)
            if verdict is Verdict.ACCEPTED:
                await add_losses(connection, Loss(failure.reason.lower()), 1)
        return verdict

    async def end_invalid_job(self, failure: Failure) -> Verdict:
        """End a generation that is not wanted any more, whoever holds it."""
        async with self._database.transaction() as connection:
            return await end_job(connection, END_INVALID_JOB, failure)

    async def describe(self) -> QueueReport:
        """The queue as it is now, as far as it is counted."""
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            due = await connection.fetchrow(COUNT_REFUNDS_DUE, MOST_COUNTED)
            found = await connection.fetch(READ_LANES, MOST_COUNTED)
        assert due is not None
        rows = {row["lane"]: row for row in found}
        return QueueReport(
            lanes=[_lane_report(lane, rows.get(lane)) for lane in Lane],
            refunds_due=due["refunds_due"],
            taken_at=due["taken_at"],
        )

    async def announce_jobs(self, sender: str) -> None:
        """Tell other replicas that there is work."""
        async with self._database.connection() as connection:
            await connection.execute(ANNOUNCE_JOBS, sender)


def _lane_report(lane: Lane, row: asyncpg.Record | None) -> LaneReport:
    return LaneReport(**{**dict(row), "lane": lane}) if row else LaneReport(lane=lane)
