"""SQL for the job queue: lease, renew, complete, fail, release, each fenced by its attempt."""

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

import asyncpg

from services.cache.domain import Key, Lane
from services.cache.job_domain import (
    ATTEMPT_BASE,
    ATTEMPT_CAP,
    ATTEMPT_PER_CHUNK,
    ATTEMPT_PER_IMAGE,
    Clocks,
    Failure,
    Job,
    KeptLease,
    Lease,
    Loss,
    Progress,
    Result,
    Verdict,
)
from services.cache.loss_store import add_losses, leases_expired
from services.cache.metrics import LEASE_WAITS
from services.cache.samples import SampleKey
from services.runtime.database import Connection, Database
from services.runtime.tracing import past_span

# $1 worker, $2 how many, $3 lease, $4 attempts allowed, $5 to $8 the parts of the deadline,
# $9 lane, $10 the first turn to look at. Owners in turns. SKIP LOCKED lets replicas hand out jobs
# at once; raising `attempts` fences every older lease. No indexed column changes: leasing is a HOT
# update. An array, because a join would be planned for a limit that nobody knows. Who let a lease
# run out gets that job again only when nobody else has wanted it for as long as a lease lasts: a
# frozen worker, whose stream stays open, must not use up one attempt after the other.
LEASE_JOBS = """
UPDATE cache.generations AS job
SET attempts = job.attempts + 1,
    leased_by = $1,
    leased_until = now() + $3::interval,
    deadline_at = now() + least(
        $5::interval + $6::interval * job.images_count + $7::interval * job.chunks, $8::interval
    ),
    started_at = now(),
    stage = 'reading', done = 0, total = 0
WHERE job.generation_id = ANY(ARRAY(
    SELECT waiting.generation_id
    FROM cache.generations AS waiting
    WHERE waiting.status = 'generating' AND waiting.lane = $9 AND waiting.turn >= $10
      AND (waiting.leased_until IS NULL OR waiting.leased_until
           < now() - CASE WHEN waiting.leased_by = $1 THEN $3 ELSE interval '0' END)
      AND waiting.attempts - waiting.released < $4
    ORDER BY waiting.turn, waiting.run_after
    LIMIT $2
    FOR UPDATE SKIP LOCKED
))
RETURNING job.generation_id, job.attempts, job.kind, job.pdf_hash, job.page, job.prompt_version,
          job.locale, job.effective_mode, job.model, job.scope, job.images_count, job.created_at,
          job.leased_until, job.deadline_at, job.deadline_at - now() AS time_left,
          job.traceparent, job.turn, job.run_after
"""


def held(more: str = "") -> str:
    """SQL for the rows of `lease` whose lease is still held, locked; `more` columns of the job.

    Locked in the order of ids, so that two batches with the same jobs do not wait for each other.
    Looked up one by one: at any moment few rows are leased, statistics say none, and a join
    would be planned to read all jobs in order to find them.
    """
    return f"""SELECT lease.*{more}
    FROM lease
    CROSS JOIN LATERAL (
        SELECT *
        FROM cache.generations AS generation
        WHERE generation.generation_id = lease.generation_id
          AND generation.attempts = lease.attempt
          AND generation.status = 'generating' AND generation.leased_by IS NOT NULL
        FOR UPDATE
    ) AS job"""


# A lease lasts no longer than its attempt, and more chunks than expected make the attempt longer.
# No indexed column changes: heartbeats are HOT updates.
RENEW_LEASES = f"""
WITH lease AS (
    SELECT *
    FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::integer[], $5::integer[], $6::integer[])
        AS renewal (generation_id, attempt, stage, done, total, chunks)
    ORDER BY generation_id
), held AS (
    {held(", job.started_at, job.images_count, greatest(job.chunks, lease.chunks) AS most_chunks")}
    WHERE job.deadline_at > now()
), granted AS (
    SELECT held.*, held.started_at + least(
        $8::interval + $9::interval * held.images_count + $10::interval * held.most_chunks,
        $11::interval
    ) AS deadline_at
    FROM held
)
UPDATE cache.generations AS job
SET leased_until = least(now() + $7::interval, granted.deadline_at),
    deadline_at = granted.deadline_at,
    chunks = granted.most_chunks,
    stage = coalesce(granted.stage, job.stage),
    done = CASE WHEN granted.stage IS NULL THEN job.done ELSE granted.done END,
    total = CASE WHEN granted.stage IS NULL THEN job.total ELSE granted.total END
FROM granted
WHERE job.generation_id = granted.generation_id
RETURNING job.generation_id, job.attempts, job.deadline_at - now() AS time_left
"""

# Of leases that could not be renewed: those whose work is not simply done.
COUNT_LOST = """
SELECT count(*)
FROM unnest($1::uuid[], $2::integer[]) AS lease (generation_id, attempt)
LEFT JOIN cache.generations AS job
    ON job.generation_id = lease.generation_id AND job.attempts = lease.attempt
WHERE job.completed_at IS NULL
"""

LOCK_LEASED = f"""
WITH lease AS (
    SELECT * FROM unnest($1::uuid[], $2::integer[]) AS one (generation_id, attempt)
    ORDER BY generation_id
)
{held(", job.attempts - job.released AS tried")}
"""

# A worker that does not know the kind of its job has made something else: that is not the result.
# The ids come sorted, for the same order of locks. `leased_by IS NOT NULL` is put in words that
# statistics know nothing of, for the reason given at `held`.
COMPLETE_JOBS = f"""
UPDATE cache.generations AS job
SET status = 'ready', stage = 'ready', result = made.result, completed_at = now(),
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = NULL, error_message = NULL
FROM unnest($1::uuid[], $2::integer[], $3::bytea[], $4::boolean[])
    AS made (generation_id, attempt, result, is_document)
WHERE job.generation_id = made.generation_id AND job.attempts = made.attempt
  AND (job.kind = 'document_markdown') = made.is_document
  AND job.status = 'generating' AND coalesce(job.leased_by, '') <> ''
RETURNING job.generation_id, job.attempts,
          extract(epoch FROM now() - job.started_at)::float8 AS seconds,
          {leases_expired(ended_by_worker=True)} AS expired
"""

# What it returns are the columns of a sample: how long each of them has waited, and for what. Some
# have joined since the transaction began.
SERVE_WAITERS = """
UPDATE cache.requests AS request
SET state = 'served', updated_at = now()
FROM cache.generations AS made
WHERE request.generation_id = ANY($1::uuid[]) AND request.state = 'waiting'
  AND made.generation_id = request.generation_id
RETURNING made.kind, made.pdf_hash, made.page, made.locale, made.effective_mode, request.outcome,
          made.images_count, made.chunks,
          least(2147483647, greatest(0,
              1000 * extract(epoch FROM clock_timestamp() - request.created_at)
          ))::integer AS latency_ms
"""

# Without a turn it is nobody's until READMIT_DUE: who waits for its time stands in nobody's way.
RETRY_JOB = """
UPDATE cache.generations
SET stage = 'retrying', done = 0, total = 0, turn = NULL, run_after = now() + $3::interval,
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = $4::text, error_message = $5::text,
    failures = failures || jsonb_build_object(
        'attempt', attempts, 'reason', $4::text, 'message', $5::text, 'failed_at', now())
WHERE generation_id = $1 AND status = 'generating' AND attempts = $2 AND leased_by IS NOT NULL
RETURNING generation_id
"""

FAIL_JOB = f"""
UPDATE cache.generations
SET status = 'failed', stage = 'failed', completed_at = now(),
    leased_by = NULL, leased_until = NULL, deadline_at = NULL,
    error_reason = $3::text, error_message = $4::text, failed_for_good = $5,
    failures = failures || jsonb_build_object(
        'attempt', attempts, 'reason', $3::text, 'message', $4::text, 'failed_at', now())
WHERE generation_id = $1 AND status = 'generating' AND attempts = $2 AND leased_by IS NOT NULL
RETURNING {leases_expired(ended_by_worker=False)}
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

# Back to its old place, the turn it had. The number of the attempt is used up, the attempt is not.
RELEASE_JOBS = f"""
WITH lease AS (
    SELECT * FROM unnest($1::uuid[], $2::integer[]) AS one (generation_id, attempt)
    ORDER BY generation_id
), held AS (
    {held()}
)
UPDATE cache.generations AS job
SET stage = 'queued', done = 0, total = 0, released = job.released + 1,
    leased_by = NULL, leased_until = NULL, deadline_at = NULL
FROM held
WHERE job.generation_id = held.generation_id
RETURNING job.generation_id, job.attempts
"""

# Told what requests got with their result, and how long that took in milliseconds.
NoteServed = Callable[[Iterable[tuple[SampleKey, int]]], None]

_DEADLINE_PARTS = (ATTEMPT_BASE, ATTEMPT_PER_IMAGE, ATTEMPT_PER_CHUNK, ATTEMPT_CAP)


class _Place:
    """Where in a lane the last jobs were found.

    What was leased and ended stays in the index until it is vacuumed, and a long snapshot somewhere
    keeps that from happening: looking from the very front would take longer with every job. So the
    front is looked at once a second only, for jobs that came back, and whenever nothing is found.
    """

    LOOK_AT_THE_FRONT_SECONDS = 1.0

    def __init__(self) -> None:
        self._turn = 0
        self._looked_at = 0.0

    def first_turn(self) -> int:
        now = time.monotonic()
        if now - self._looked_at > self.LOOK_AT_THE_FRONT_SECONDS:
            self._looked_at = now
            return 0
        return self._turn

    def note(self, turn: int) -> None:
        self._turn = turn


class JobStore:
    """Generations as workers see them."""

    def __init__(
        self,
        database: Database,
        clocks: Clocks,
        note_served: NoteServed = lambda served: None,
    ) -> None:
        self._database = database
        self._clocks = clocks
        self._note_served = note_served
        self._places = {lane: _Place() for lane in Lane}

    async def lease_jobs(self, worker_id: str, limit: int) -> list[Job]:
        """Up to `limit` jobs for a worker, in the order in which they are to be done."""
        jobs: list[Job] = []
        async with self._database.connection() as connection:
            for lane in Lane:
                if len(jobs) < limit:
                    jobs += await self._lease_from(connection, lane, worker_id, limit - len(jobs))
        return jobs

    async def _lease_from(
        self, connection: Connection, lane: Lane, worker_id: str, limit: int
    ) -> list[Job]:
        place = self._places[lane]
        first_turn = place.first_turn()
        rows = await self._lease(connection, lane, first_turn, worker_id, limit)
        if len(rows) < limit and first_turn > 0:
            rows += await self._lease(connection, lane, 0, worker_id, limit - len(rows))
        # UPDATE returns rows in any order.
        rows.sort(key=lambda row: (row["turn"], row["run_after"]))
        place.note(rows[0]["turn"] if rows else 0)
        self._note_waits(lane, rows)
        return [_job(row) for row in rows]

    def _note_waits(self, lane: Lane, rows: Sequence[asyncpg.Record]) -> None:
        wait_seconds, lease = LEASE_WAITS[lane], self._clocks.lease
        for row in rows:
            due_at, leased_at = row["run_after"], row["leased_until"] - lease
            wait_seconds.observe((leased_at - due_at).total_seconds())
            if parent := row["traceparent"]:
                past_span("queue", parent=parent, began_at=due_at, ended_at=leased_at)

    async def _lease(
        self, connection: Connection, lane: Lane, first_turn: int, worker_id: str, limit: int
    ) -> list[asyncpg.Record]:
        return await connection.fetch(
            LEASE_JOBS,
            worker_id,
            limit,
            self._clocks.lease,
            self._clocks.max_attempts,
            *_DEADLINE_PARTS,
            lane,
            first_turn,
        )

    async def renew_leases(self, renewals: Sequence[Progress]) -> tuple[list[KeptLease], int]:
        """Which of these leases are still held, and how many were lost to somebody else."""
        columns = (
            *_fences([renewal.lease for renewal in renewals]),
            [renewal.stage for renewal in renewals],
            [renewal.done for renewal in renewals],
            [renewal.total for renewal in renewals],
            [renewal.chunks for renewal in renewals],
        )
        async with self._database.connection() as connection:
            rows = await connection.fetch(
                RENEW_LEASES, *columns, self._clocks.lease, *_DEADLINE_PARTS
            )
            kept = [KeptLease(lease=lease_from(row), time_left=row["time_left"]) for row in rows]
            held = {one.lease for one in kept}
            gone = [renewal.lease for renewal in renewals if renewal.lease not in held]
            lost = await connection.fetchval(COUNT_LOST, *_fences(gone)) if gone else 0
        return kept, lost

    async def complete_jobs(self, results: Mapping[Lease, Result]) -> dict[Lease, float]:
        """Publish results and serve all who wait for them; what is not answered was lost.

        The answer tells how many seconds each attempt took.
        """
        leases = sorted(results)
        async with self._database.transaction() as connection:
            rows = await connection.fetch(
                COMPLETE_JOBS,
                *_fences(leases),
                [results[lease].content for lease in leases],
                [results[lease].is_document for lease in leases],
            )
            # A statement of its own: it must see waiters that the ones above have waited for.
            served = await connection.fetch(SERVE_WAITERS, [row["generation_id"] for row in rows])
            await add_losses(connection, Loss.LEASE_EXPIRED, sum(row["expired"] for row in rows))
        self._note_served((SampleKey(*tuple(row)[:-1]), row["latency_ms"]) for row in served)
        return {lease_from(row): row["seconds"] for row in rows}

    async def fail_job(self, failure: Failure) -> Verdict:
        """Record a failed attempt: try again later, or end it and write down every refund due."""
        lease = failure.lease
        async with self._database.transaction() as connection:
            held = await connection.fetchrow(LOCK_LEASED, *_fences([lease]))
            if held is None:
                return Verdict.LEASE_LOST
            delay = self._clocks.retry_delay(
                failure,
                tried=held["tried"],
                spread=random.random(),  # noqa: S311 - not a secret
            )
            if delay is None:
                return await end_job(connection, FAIL_JOB, failure)
            return await _retry(connection, failure, delay)

    async def release_jobs(self, leases: Sequence[Lease]) -> set[Lease]:
        """Give jobs back without using up an attempt; what is not answered was lost."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(RELEASE_JOBS, *_fences(leases))
        return {lease_from(row) for row in rows}


async def end_job(connection: Connection, statement: str, failure: Failure) -> Verdict:
    """End a generation by a fenced statement, and write down every refund that makes due.

    The statement answers how many of its leases had run out.
    """
    lease = failure.lease
    expired = await connection.fetchval(
        statement,
        lease.generation_id,
        lease.attempt,
        failure.reason,
        failure.message,
        failure.permanent,
    )
    if expired is None:
        return Verdict.LEASE_LOST
    await connection.execute(FAIL_WAITERS, lease.generation_id)
    await add_losses(connection, Loss.LEASE_EXPIRED, expired)
    return Verdict.ACCEPTED


async def _retry(connection: Connection, failure: Failure, delay: timedelta) -> Verdict:
    lease = failure.lease
    waits = await connection.fetchval(
        RETRY_JOB, lease.generation_id, lease.attempt, delay, failure.reason, failure.message
    )
    return Verdict.LEASE_LOST if waits is None else Verdict.RETRYING


def _fences(leases: "Sequence[Lease] | Mapping[Lease, object]") -> tuple[list[object], list[int]]:
    """Ids and attempts as two columns."""
    return [lease.generation_id for lease in leases], [lease.attempt for lease in leases]


def lease_from(row: asyncpg.Record) -> Lease:
    return Lease(generation_id=row["generation_id"], attempt=row["attempts"])


def _job(row: asyncpg.Record) -> Job:
    """The columns of LEASE_JOBS as they stand there."""
    columns = tuple(row)
    return Job(Lease(*columns[:2]), Key(*columns[2:10]), *columns[10:16])
