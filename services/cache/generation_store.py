"""SQL for reading generations: by key, by id, and where they stand in the queue."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from services.cache.domain import (
    AttemptFailure,
    Generation,
    GenerationClocks,
    Key,
    Lane,
    Queue,
    Status,
)
from services.runtime.database import Database

# Parts of statements, not statements themselves: lower case keeps them out of the list.
status_columns = """generation_id, kind, pdf_hash, page, prompt_version, locale, effective_mode,
       model, scope, status, stage, done, total, attempts, error_reason, error_message, created_at,
       completed_at, lane"""
generation_columns = f"{status_columns}, result, stickers"

key_matches = """kind = $1 AND pdf_hash = $2 AND page = $3 AND prompt_version = $4
  AND locale = $5 AND effective_mode = $6 AND model = $7 AND scope = $8"""


def present_turn(lane: str) -> str:
    """SQL for the round a lane is in: that of the first job still waiting, or the last begun."""
    return f"""coalesce((
        SELECT waiting.turn
        FROM cache.generations AS waiting
        WHERE waiting.status = 'generating' AND waiting.turn IS NOT NULL AND waiting.lane = {lane}
          AND (waiting.leased_until IS NULL OR waiting.leased_until < now())
        ORDER BY waiting.turn
        LIMIT 1
    ), (
        SELECT begun.turn
        FROM cache.generations AS begun
        WHERE begun.status = 'generating' AND begun.turn IS NOT NULL AND begun.lane = {lane}
        ORDER BY begun.turn DESC
        LIMIT 1
    ), 0)"""


FIND_LIVE = f"""
SELECT {generation_columns}
FROM cache.generations
WHERE {key_matches} AND status IN ('generating', 'ready') AND retired_at IS NULL
"""

# A page that failed for good a moment ago fails again: nobody pays for finding that out.
FIND_REMEMBERED_FAILURE = f"""
SELECT {generation_columns}
FROM cache.generations
WHERE {key_matches} AND failed_for_good AND completed_at > now() - $9::interval
ORDER BY completed_at DESC
LIMIT 1
"""

# The last result of a page, whatever version or model made it; not that of a document that was
# gone in between. In two parts, for each has an index of its own.
FIND_STALE = f"""
SELECT {generation_columns}
FROM (
    SELECT {generation_columns}
    FROM cache.generations
    WHERE kind = $1 AND pdf_hash = $2 AND page = $3 AND locale = $4 AND scope = $5
      AND status IN ('generating', 'ready') AND retired_at IS NULL
    UNION ALL
    SELECT {generation_columns}
    FROM cache.generations
    WHERE kind = $1 AND pdf_hash = $2 AND page = $3 AND locale = $4 AND scope = $5
      AND retired_at IS NOT NULL AND retired_reason <> 'DOCUMENT_COLLECTED'
) AS version
WHERE status = 'ready'
ORDER BY completed_at DESC
LIMIT 1
"""

# The same page in another file ($9: what the model saw), made in the same way: the result is taken
# over under this document's key, so that from now on it is found, shown and retired like any other.
ADOPT_TWIN = f"""
INSERT INTO cache.generations (
    kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
    context_fingerprint, copied_from, status, stage, result, stickers, completed_at, turn
)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, twin.images_count,
    twin.context_fingerprint, coalesce(twin.copied_from, twin.generation_id), 'ready', 'ready',
    twin.result, twin.stickers, now(), NULL
FROM cache.generations AS twin
WHERE twin.context_fingerprint = $9 AND twin.context_fingerprint <> ''
  AND twin.status = 'ready' AND twin.retired_at IS NULL
  AND twin.kind = $1 AND twin.prompt_version = $4 AND twin.locale = $5
  AND twin.effective_mode = $6 AND twin.model = $7 AND twin.scope = $8
LIMIT 1
FOR SHARE OF twin
ON CONFLICT (pdf_hash, page, locale, kind, prompt_version, effective_mode, model, scope)
    WHERE status IN ('generating', 'ready') AND retired_at IS NULL
DO NOTHING
RETURNING {generation_columns}
"""

READ_GENERATION = f"""
SELECT {generation_columns}
FROM cache.generations
WHERE generation_id = $1
"""

# How many wait before this one (itself counted), and how many are being worked on. Counting stops
# at a thousand: nobody cares about the exact place beyond that. What waits for its next attempt
# has no turn yet and stands behind all others of its lane.
READ_QUEUE = """
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM cache.generations AS ahead
        WHERE ahead.status = 'generating' AND ahead.turn IS NOT NULL
          AND (ahead.leased_until IS NULL OR ahead.leased_until < now())
          AND (ahead.lane, ahead.turn, ahead.run_after)
              < (mine.lane, coalesce(mine.turn, 9223372036854775807), mine.run_after)
        LIMIT 1000
    ) AS queue) + 1 AS position,
    (SELECT count(*) FROM (
        SELECT 1 FROM cache.generations AS leased
        WHERE leased.status = 'generating' AND leased.turn IS NOT NULL
          AND leased.leased_until >= now()
        LIMIT 1000
    ) AS working) AS working,
    mine.run_after - now() AS delay
FROM cache.generations AS mine
WHERE mine.generation_id = $1 AND mine.status = 'generating'
  AND (mine.leased_until IS NULL OR mine.leased_until < now())
"""


READ_HISTORY = """
SELECT run_after, greatest(run_after, started_at) AS waits_since, leased_until, deadline_at,
       attempts - released AS tried, failures, status
FROM cache.generations
WHERE generation_id = $1
"""


class GenerationStore:
    """Generations as readers see them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_live(self, key: Key) -> Generation | None:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(FIND_LIVE, *key_values(key))
        return generation_from(row) if row else None

    async def adopt_twin(self, key: Key, context_fingerprint: str) -> Generation | None:
        """Take over the result of the same page in another file; None when there is none."""
        if not context_fingerprint:
            return None
        async with self._database.connection() as connection:
            row = await connection.fetchrow(ADOPT_TWIN, *key_values(key), context_fingerprint)
        return generation_from(row) if row else None

    async def find_remembered_failure(
        self, key: Key, remember_failure: timedelta
    ) -> Generation | None:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(
                FIND_REMEMBERED_FAILURE, *key_values(key), remember_failure
            )
        return generation_from(row) if row else None

    async def find_stale(self, key: Key) -> Generation | None:
        """The last result there was for this page, to be shown while a new one is made."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(
                FIND_STALE, key.kind, key.pdf_hash, key.page, key.locale, key.scope
            )
        return generation_from(row) if row else None

    async def read_generation(self, generation_id: UUID) -> Generation | None:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_GENERATION, generation_id)
        return generation_from(row) if row else None

    async def read_history(
        self, generation_id: UUID
    ) -> tuple[GenerationClocks, tuple[AttemptFailure, ...]]:
        """The clocks that run, and how attempts have failed so far."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_HISTORY, generation_id)
        assert row is not None, "who asks has just read the generation"
        runs = row["status"] == Status.GENERATING
        clocks = GenerationClocks(
            run_after=row["run_after"] if runs else None,
            waits_since=row["waits_since"] if runs and row["leased_until"] is None else None,
            leased_until=row["leased_until"],
            deadline_at=row["deadline_at"],
            tried=row["tried"],
        )
        return clocks, tuple(attempt_failure_from(item) for item in row["failures"])

    async def read_queue(self, generation_id: UUID, *, seconds_each: float) -> Queue:
        """Place and expected wait, when a generation takes about `seconds_each`."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_QUEUE, generation_id)
        if row is None:
            return Queue()
        wait = timedelta(seconds=seconds_each * row["position"] / max(1, row["working"]))
        return Queue(position=row["position"], estimated_wait=max(wait, row["delay"]))


def key_values(key: Key) -> tuple[str | int, ...]:
    return (
        key.kind,
        key.pdf_hash,
        key.page,
        key.prompt_version,
        key.locale,
        key.effective_mode,
        key.model,
        key.scope,
    )


def key_from(row: asyncpg.Record) -> Key:
    return Key(
        kind=row["kind"],
        pdf_hash=row["pdf_hash"],
        page=row["page"],
        prompt_version=row["prompt_version"],
        locale=row["locale"],
        effective_mode=row["effective_mode"],
        model=row["model"],
        scope=row["scope"],
    )


def generation_from(row: asyncpg.Record) -> Generation:
    return Generation(
        generation_id=row["generation_id"],
        key=key_from(row),
        status=Status(row["status"]),
        stage=row["stage"],
        done=row["done"],
        total=row["total"],
        attempts=row["attempts"],
        created_at=row["created_at"],
        completed_at=row["completed_at"],
        result=row["result"],
        result_json=row["stickers"],
        error_reason=row["error_reason"],
        error_message=row["error_message"],
        lane=Lane(row["lane"]),
    )


def attempt_failure_from(item: dict[str, Any]) -> AttemptFailure:
    return AttemptFailure(
        attempt=item["attempt"],
        reason=item["reason"],
        message=item["message"],
        failed_at=datetime.fromisoformat(item["failed_at"]),
    )
