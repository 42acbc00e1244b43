"""SQL for generations that failed, seen as jobs: which they are, and how they are started anew."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import asyncpg

from services.cache import domain
from services.cache.domain import AttemptFailure, Key, Lane
from services.cache.generation_store import (
    FIND_LIVE,
    attempt_failure_from,
    key_from,
    key_values,
    present_turn,
)
from services.runtime.database import Connection, Database

# Who is taken out of service has not failed at anything.
LIST_FAILED = """
SELECT generation_id, kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope,
       error_reason, error_message, failed_for_good, attempts - released AS tried, failures,
       created_at, completed_at
FROM cache.generations
WHERE status = 'failed' AND (completed_at, generation_id) > ($1::timestamptz, $2::uuid)
  AND NOT invalidated
ORDER BY completed_at, generation_id
LIMIT $3
"""

READ_FAILED_AT = "SELECT completed_at FROM cache.generations WHERE generation_id = $1"

LOCK_FAILED = """
SELECT kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope
FROM cache.generations
WHERE generation_id = $1 AND status = 'failed' AND NOT invalidated
FOR SHARE
"""

# A new one beside the failed one, which stays what it is: ends are final. It has no owner, so all
# of them together take turns with everybody else's background work as one owner does.
REDRIVE_JOB = f"""
INSERT INTO cache.generations (
    kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
    context_fingerprint, owner, lane, turn
)
SELECT $2, $3, $4, $5, $6, $7, $8, $9, failed.images_count, failed.context_fingerprint, '',
    $10, greatest(
        coalesce((
            SELECT own.turn + 1
            FROM cache.generations AS own
            WHERE own.status = 'generating' AND own.turn IS NOT NULL
              AND own.owner = '' AND own.lane = $10
            ORDER BY own.turn DESC
            LIMIT 1
        ), 0),
        {present_turn("$10")}
    )
FROM cache.generations AS failed
WHERE failed.generation_id = $1 AND failed.status = 'failed'
ON CONFLICT (pdf_hash, page, locale, kind, prompt_version, effective_mode, model, scope)
    WHERE status IN ('generating', 'ready') AND retired_at IS NULL
DO NOTHING
RETURNING generation_id
"""


class RedriveVerdict(StrEnum):
    STARTED = "started"
    ALREADY_LIVE = "already_live"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Redriven:
    """What became of the wish to start a failed generation anew."""

    verdict: RedriveVerdict
    generation_id: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class FailedJob:
    """A generation that was given up."""

    generation_id: UUID
    key: Key
    reason: str
    message: str
    permanent: bool
    tried: int
    failures: tuple[AttemptFailure, ...]
    created_at: datetime
    failed_at: datetime


class FailedStore:
    """Generations that failed."""

    def __init__(self, database: Database, *, prompt_version: str, model: str) -> None:
        self._database = database
        self._prompt_version = prompt_version
        self._model = model

    async def list_failed(self, since: datetime, after: UUID | None, most: int) -> list[FailedJob]:
        """In the order in which they failed: from a time on, or what follows one of them."""
        async with self._database.connection() as connection:
            if after is not None:
                since = await connection.fetchval(READ_FAILED_AT, after) or since
            rows = await connection.fetch(LIST_FAILED, since, after or UUID(int=0), most)
        return [_failed_job(row) for row in rows]

    async def redrive(self, generation_id: UUID) -> Redriven:
        """Start one anew, with the prompts and the model of today."""
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(LOCK_FAILED, generation_id)
            if row is None:
                return Redriven(verdict=RedriveVerdict.GONE)
            return await _start(connection, generation_id, self._present_key(key_from(row)))

    def _present_key(self, key: Key) -> Key:
        """Nobody looks for what old prompts made."""
        version = domain.version_of(key.kind, prompt_version=self._prompt_version)
        return key._replace(prompt_version=version, model=self._model)


async def _start(connection: Connection, generation_id: UUID, key: Key) -> Redriven:
    while True:  # until either statement finds it: the live one may end between the two
        started = await connection.fetchval(
            REDRIVE_JOB, generation_id, *key_values(key), Lane.BACKGROUND
        )
        if started is not None:
            return Redriven(verdict=RedriveVerdict.STARTED, generation_id=started)
        live = await connection.fetchrow(FIND_LIVE, *key_values(key))
        if live is not None:
            verdict = RedriveVerdict.ALREADY_LIVE
            return Redriven(verdict=verdict, generation_id=live["generation_id"])


def _failed_job(row: asyncpg.Record) -> FailedJob:
    return FailedJob(
        generation_id=row["generation_id"],
        key=key_from(row),
        reason=row["error_reason"],
        message=row["error_message"] or "",
        permanent=row["failed_for_good"],
        tried=row["tried"],
        failures=tuple(attempt_failure_from(item) for item in row["failures"]),
        created_at=row["created_at"],
        failed_at=row["completed_at"],
    )
