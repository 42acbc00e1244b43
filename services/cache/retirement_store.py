"""SQL that takes generations out of service, and deletes what has been out of it for long."""

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from services.cache.domain import Selection
from services.cache.job_domain import Clocks, Lease
from services.cache.job_store import lease_from
from services.runtime.database import Database

# $1 to $4: what must match; null matches everything.
selection = """($1::text IS NULL OR pdf_hash = $1) AND ($2::integer IS NULL OR page = $2)
  AND ($3::text IS NULL OR prompt_version = $3) AND ($4::text IS NULL OR kind = $4)"""

FIND_RUNNING = f"""
SELECT generation_id, attempts
FROM cache.generations
WHERE status = 'generating' AND {selection} AND created_at <= $5
LIMIT 1000
"""

READ_CLOCK = "SELECT now()"

COUNT_RUNNING = f"""
SELECT count(*)
FROM cache.generations
WHERE status = 'generating' AND {selection}
"""

COUNT_READY = f"""
SELECT count(*)
FROM cache.generations
WHERE status = 'ready' AND retired_at IS NULL AND {selection}
"""

# The next piece after $5, in the order of ids: however many there are, they are read once.
CHOOSE_READY = f"""
SELECT generation_id
FROM cache.generations
WHERE status = 'ready' AND retired_at IS NULL AND {selection} AND generation_id > $5
ORDER BY generation_id
LIMIT 1000
"""

# With $3, the whole family goes: what a copy was taken from, and all its other copies; otherwise a
# copy would only be taken again. The notification is a hint for other replicas to forget the
# results; they look as well.
RETIRE_GENERATIONS = """
WITH family AS (
    SELECT unnest($1::uuid[]) AS generation_id
    UNION
    SELECT copy.copied_from
    FROM cache.generations AS copy
    WHERE $3 AND copy.generation_id = ANY($1::uuid[]) AND copy.copied_from IS NOT NULL
), retired AS (
    UPDATE cache.generations AS generation
    SET retired_at = now(), retired_reason = $2
    WHERE generation.status = 'ready' AND generation.retired_at IS NULL
      AND (generation.generation_id IN (SELECT family.generation_id FROM family)
           OR ($3 AND generation.copied_from IN (SELECT family.generation_id FROM family)))
    RETURNING generation.generation_id
)
SELECT retired.generation_id, pg_notify('cache_retired', '') FROM retired
"""

# What failed for good may be tried again.
FORGET_FAILURES = f"""
UPDATE cache.generations
SET failed_for_good = false
WHERE failed_for_good AND {selection}
"""

# A transaction commits later than the time it wrote; time-outs keep it from being much later.
LIST_RETIRED = """
SELECT generation_id
FROM cache.generations
WHERE retired_at > now() - $1::interval
"""

TOUCH_GENERATIONS = """
UPDATE cache.generations
SET last_accessed_at = now()
WHERE generation_id = ANY($1::uuid[])
"""

# Requests first: they refer to generations. One whose refund is still due stays: its id must stay
# taken until Quota knows. Both in small pieces, so that nobody waits for long. The oldest first and
# as an array, so that indexes are read as far as there is something to delete, and no table whole.
DELETE_SETTLED_REQUESTS = """
DELETE FROM cache.requests
WHERE request_id = ANY(ARRAY(
    SELECT settled.request_id
    FROM cache.requests AS settled
    WHERE state IN ('served', 'failed', 'aborted') AND updated_at < now() - $1::interval
      AND NOT EXISTS (
          SELECT FROM cache.outbox AS due WHERE due.request_id = settled.request_id
      )
    ORDER BY updated_at
    LIMIT 1000
))
"""

# OFFSET 0 keeps the question about requests from becoming a join with all of them.
DELETE_ENDED = """
DELETE FROM cache.generations
WHERE generation_id = ANY(ARRAY(
    (SELECT failed.generation_id
     FROM cache.generations AS failed
     WHERE failed.status = 'failed' AND failed.completed_at < now() - $1::interval
       AND NOT EXISTS (
           SELECT FROM cache.requests AS request
           WHERE request.generation_id = failed.generation_id
           OFFSET 0
       )
     ORDER BY failed.completed_at
     LIMIT 500)
    UNION ALL
    (SELECT retired.generation_id
     FROM cache.generations AS retired
     WHERE retired.retired_at < now() - $1::interval
       AND NOT EXISTS (
           SELECT FROM cache.requests AS request
           WHERE request.generation_id = retired.generation_id
           OFFSET 0
       )
     ORDER BY retired.retired_at
     LIMIT 500)
))
"""


class RetirementStore:
    """Generations on their way out."""

    def __init__(self, database: Database, clocks: Clocks) -> None:
        self._database = database
        self._clocks = clocks

    async def count_invalid(self, chosen: Selection) -> tuple[int, int]:
        """How many ready and how many running generations a selection means."""
        async with self._database.connection() as connection:
            ready = await connection.fetchval(COUNT_READY, *_values(chosen))
            running = await connection.fetchval(COUNT_RUNNING, *_values(chosen))
        return ready, running

    async def read_clock(self) -> datetime:
        async with self._database.connection() as connection:
            now: datetime = await connection.fetchval(READ_CLOCK)
        return now

    async def find_running(self, chosen: Selection, *, until: datetime) -> list[Lease]:
        """Some of the running generations of a selection that were there at a time."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(FIND_RUNNING, *_values(chosen), until)
        return [lease_from(row) for row in rows]

    async def forget_failures(self, chosen: Selection) -> None:
        """Let pages that failed for good be tried again."""
        async with self._database.connection() as connection:
            await connection.execute(FORGET_FAILURES, *_values(chosen))

    async def choose_ready(self, chosen: Selection, *, after: UUID) -> list[UUID]:
        """The next ready results of a selection, in the order of their ids."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(CHOOSE_READY, *_values(chosen), after)
        return [row["generation_id"] for row in rows]

    async def retire_generations(
        self, generation_ids: list[UUID], reason: str, *, family: bool
    ) -> list[UUID]:
        """Take results out of service, with all that have the same text; answers which."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(RETIRE_GENERATIONS, generation_ids, reason, family)
        return [row["generation_id"] for row in rows]

    async def list_retired(self, within: timedelta) -> set[UUID]:
        """What went out of service lately."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_RETIRED, within)
        return {row["generation_id"] for row in rows}

    async def touch_generations(self, generation_ids: Collection[UUID]) -> None:
        """Note that results are in use."""
        async with self._database.connection() as connection:
            await connection.execute(TOUCH_GENERATIONS, list(generation_ids))

    async def delete_settled_requests(self) -> int:
        return await self._delete(DELETE_SETTLED_REQUESTS, self._clocks.retention)

    async def delete_ended(self) -> int:
        return await self._delete(DELETE_ENDED, self._clocks.retention)

    async def _delete(self, statement: str, age: timedelta) -> int:
        async with self._database.connection() as connection:
            tag = await connection.execute(statement, age)
        return int(tag.rpartition(" ")[2])


def _values(chosen: Selection) -> tuple[str | int | None, ...]:
    return (chosen.pdf_hash, chosen.page, chosen.prompt_version, chosen.kind)
