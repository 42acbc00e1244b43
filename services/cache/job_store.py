"""SQL for the job queue: lease, renew, complete, fail, each fenced by its attempt's number."""

import random
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from uuid import UUID

import asyncpg

from services.cache.domain import (
    ATTEMPT_BASE,
    ATTEMPT_CAP,
    ATTEMPT_PER_IMAGE,
    Clocks,
    Failure,
    Job,
    Lease,
    Progress,
    Sticker,
    Verdict,
)
from services.cache.generation_store import key_from
from services.runtime.database import Connection, Database

# $1 worker, $2 how many, $3 lease, $4 attempts allowed, $5 to $7 the parts of the deadline.
# SKIP LOCKED lets replicas hand out jobs at once; raising `attempts` fences every older lease.
LEASE_JOBS = """
WITH picked AS (
    SELECT generation_id
    FROM cache.generations
    WHERE status = 'generating' AND run_after <= now()
      AND (leased_until IS NULL OR leased_until < now())
      AND attempts < $4
    ORDER BY run_after, generation_id
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE cache.generations AS job
SET attempts = job.attempts + 1,
    leased_by = $1,
    leased_until = now() + $3::interval,
    deadline_at = now() + least($5::interval + $6::interval * job.images_count, $7::interval),
    started_at = now(),
    stage = 'reading', done = 0, total = 0
FROM picked
WHERE job.generation_id = picked.generation_id
RETURNING job.generation_id, job.attempts, job.kind, job.pdf_hash, job.page, job.prompt_version,
          job.locale, job.effective_mode, job.model, job.scope, job.images_count, job.created_at,
          job.leased_until, job.deadline_at, job.deadline_at - now() AS time_left
"""

# A lease lasts no longer than its attempt. No indexed column changes: heartbeats are HOT updates.
RENEW_LEASES = """
UPDATE cache.generations AS job
SET leased_until = least(now() + $6::interval, job.deadline_at),
    stage = coalesce(renewal.stage, job.stage),
    done = CASE WHEN renewal.stage IS NULL THEN job.done ELSE renewal.done END,
    total = CASE WHEN renewal.stage IS NULL THEN job.total ELSE renewal.total END
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::integer[])
    AS renewal (generation_id, attempt, stage, done, total)
WHERE job.generation_id = renewal.generation_id AND job.status = 'generating'
  AND job.attempts = renewal.attempt AND job.leased_by IS NOT NULL AND job.deadline_at > now()
RETURNING job.generation_id
"""

# Of leases that could not be renewed: those whose work is not simply done.
COUNT_LOST = """
SELECT count(*)
FROM unnest($1::uuid[], $2::integer[]) AS lease (generation_id, attempt)
LEFT JOIN cache.generations AS job
    ON job.generation_id = lease.generation_id AND job.attempts = lease.attempt
WHERE job.completed_at IS NULL
"""

COMPLETE_JOB = """
UPDATE cache.generations
SET status = 'ready', stage = 'ready', stickers = $3, completed_at = now(),
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = NULL, error_message = NULL
WHERE generation_id = $1 AND status = 'generating' AND attempts = $2 AND leased_by IS NOT NULL
RETURNING extract(epoch FROM now() - started_at)::float8 AS seconds
"""

SERVE_WAITERS = """
UPDATE cache.requests
SET state = 'served', updated_at = now()
WHERE generation_id = $1 AND state = 'waiting'
"""

RETRY_JOB = """
UPDATE cache.generations
SET stage = 'retrying', done = 0, total = 0, run_after = now() + $3::interval,
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = $4, error_message = $5
WHERE generation_id = $1 AND status = 'generating' AND attempts = $2 AND leased_by IS NOT NULL
RETURNING generation_id
"""

FAIL_JOB = """
UPDATE cache.generations
SET status = 'failed', stage = 'failed', completed_at = now(),
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = $3, error_message = $4
WHERE generation_id = $1 AND status = 'generating' AND attempts = $2 AND leased_by IS NOT NULL
RETURNING generation_id
"""

# For the sweep: only what no worker holds, even if one has renewed since the sweep looked.
END_ABANDONED_JOB = """
UPDATE cache.generations
SET status = 'failed', stage = 'failed', completed_at = now(),
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = $3, error_message = $4
WHERE generation_id = $1 AND status = 'generating' AND attempts = $2
  AND (leased_until IS NULL OR leased_until < now())
RETURNING generation_id
"""

# Everyone who may have paid gets it back; who is known to have paid 0 has nothing to get.
FAIL_WAITERS = """
WITH failed AS (
    UPDATE cache.requests
    SET state = 'failed', updated_at = now()
    WHERE generation_id = $1 AND state = 'waiting'
    RETURNING request_id, user_id, units
)
INSERT INTO cache.outbox (request_id, user_id, reason, generation_id)
SELECT request_id, user_id, 'generation_failed', $1
FROM failed
WHERE units IS NULL OR units > 0
"""

# Leases that ran out on their last attempt.
FIND_SPENT = """
SELECT generation_id, attempts
FROM cache.generations
WHERE status = 'generating' AND attempts >= $1
  AND (leased_until IS NULL OR leased_until < now())
LIMIT 1000
"""

# Jobs no worker has taken up in time.
FIND_OVERDUE = """
SELECT generation_id, attempts
FROM cache.generations
WHERE status = 'generating' AND coalesce(leased_until, run_after) < now() - $1::interval
LIMIT 1000
"""


class JobStore:
    """Generations as workers see them."""

    def __init__(self, database: Database, clocks: Clocks) -> None:
        self._database = database
        self._clocks = clocks

    async def lease_jobs(self, worker_id: str, limit: int) -> list[Job]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(
                LEASE_JOBS,
                worker_id,
                limit,
                self._clocks.lease,
                self._clocks.max_attempts,
                ATTEMPT_BASE,
                ATTEMPT_PER_IMAGE,
                ATTEMPT_CAP,
            )
        return [_job(row) for row in rows]

    async def renew_leases(self, renewals: Sequence[Progress]) -> tuple[list[UUID], int]:
        """Which of these leases are still held, and how many were lost to somebody else."""
        columns = (
            [renewal.lease.generation_id for renewal in renewals],
            [renewal.lease.attempt for renewal in renewals],
            [renewal.stage for renewal in renewals],
            [renewal.done for renewal in renewals],
            [renewal.total for renewal in renewals],
        )
        async with self._database.connection() as connection:
            rows = await connection.fetch(RENEW_LEASES, *columns, self._clocks.lease)
            kept = [row["generation_id"] for row in rows]
            lost = 0
            if len(kept) < len(renewals):
                gone = [item.lease for item in renewals if item.lease.generation_id not in kept]
                lost = await connection.fetchval(
                    COUNT_LOST,
                    [lease.generation_id for lease in gone],
                    [lease.attempt for lease in gone],
                )
        return kept, lost

    async def complete_job(self, lease: Lease, stickers: Sequence[Sticker]) -> float | None:
        """Publish a result and serve all who wait for it; None when the lease is lost.

        Otherwise: how many seconds the attempt took.
        """
        result = [asdict(sticker) for sticker in stickers]
        async with self._database.transaction() as connection:
            seconds: float | None = await connection.fetchval(
                COMPLETE_JOB, lease.generation_id, lease.attempt, result
            )
            if seconds is not None:
                # A statement of its own: it must see waiters that the one above has waited for.
                await connection.execute(SERVE_WAITERS, lease.generation_id)
        return seconds

    async def fail_job(self, failure: Failure) -> Verdict:
        """Record a failed attempt: try again later, or end it and write down every refund due."""
        delay = self._clocks.retry_delay(failure, spread=random.random())  # noqa: S311
        async with self._database.transaction() as connection:
            if delay is None:
                return await _fail(connection, FAIL_JOB, failure)
            return await _retry(connection, failure, delay)

    async def end_abandoned_job(self, failure: Failure) -> Verdict:
        """End what no worker holds, with the same settlement as a worker's failure."""
        async with self._database.transaction() as connection:
            return await _fail(connection, END_ABANDONED_JOB, failure)

    async def find_spent(self) -> list[Lease]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(FIND_SPENT, self._clocks.max_attempts)
        return [_lease(row) for row in rows]

    async def find_overdue(self) -> list[Lease]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(FIND_OVERDUE, self._clocks.queue_wait)
        return [_lease(row) for row in rows]


async def _fail(connection: Connection, statement: str, failure: Failure) -> Verdict:
    lease = failure.lease
    ended = await connection.fetchval(
        statement, lease.generation_id, lease.attempt, failure.reason, failure.message
    )
    if ended is None:
        return Verdict.LEASE_LOST
    await connection.execute(FAIL_WAITERS, lease.generation_id)
    return Verdict.ACCEPTED


async def _retry(connection: Connection, failure: Failure, delay: timedelta) -> Verdict:
    lease = failure.lease
    waits = await connection.fetchval(
        RETRY_JOB, lease.generation_id, lease.attempt, delay, failure.reason, failure.message
    )
    return Verdict.LEASE_LOST if waits is None else Verdict.RETRYING


def _lease(row: asyncpg.Record) -> Lease:
    return Lease(generation_id=row["generation_id"], attempt=row["attempts"])


def _job(row: asyncpg.Record) -> Job:
    return Job(
        lease=_lease(row),
        key=key_from(row),
        images_count=row["images_count"],
        created_at=row["created_at"],
        leased_until=row["leased_until"],
        deadline_at=row["deadline_at"],
        time_left=row["time_left"],
    )
