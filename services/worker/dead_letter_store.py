"""SQL for generations that failed: written down as the Cache tells of them, found, and redriven."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from services.runtime.database import Database
from services.worker.dead_letter import AttemptFailure, DeadLetter, Filter, Place
from services.worker.sample_store import mark_hours

columns = """generation_id, kind, pdf_hash, page, locale, effective_mode, model, prompt_version,
       private, reason, message, permanent, attempts, failures, cost_nanodollars, created_at,
       failed_at, redriven_at, redriven_as"""

# $1 to $8; null matches everything.
matches = """($1::text IS NULL OR reason = $1) AND ($2::text IS NULL OR kind = $2)
  AND ($3::text IS NULL OR pdf_hash = $3) AND ($4::text IS NULL OR locale = $4)
  AND ($5::text IS NULL OR model = $5)
  AND ($6::timestamptz IS NULL OR failed_at >= $6) AND ($7::timestamptz IS NULL OR failed_at < $7)
  AND ($8::uuid[] IS NULL OR generation_id = ANY($8))"""

READ_CLOCK = "SELECT now()"

# A generation commits later than the time it wrote: whoever reads on looks back a little.
# What a clock that ran ahead has dated into the future does not count: all that failed before that
# time comes would be overlooked.
READ_LAST_FAILURE = "SELECT max(failed_at) FROM worker.dead_letters WHERE failed_at <= now()"

LIST_KNOWN = "SELECT generation_id FROM worker.dead_letters WHERE generation_id = ANY($1::uuid[])"

INSERT_DEAD_LETTERS = """
INSERT INTO worker.dead_letters (
    generation_id, kind, pdf_hash, page, locale, effective_mode, model, prompt_version, private,
    reason, message, permanent, attempts, failures, cost_nanodollars, created_at, failed_at
)
SELECT generation_id, kind, pdf_hash, page, locale, effective_mode, model, prompt_version, private,
    reason, message, permanent, attempts, failures::jsonb, cost_nanodollars, created_at, failed_at
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[],
    $8::text[], $9::boolean[], $10::text[], $11::text[], $12::boolean[], $13::integer[],
    $14::text[], $15::bigint[], $16::timestamptz[], $17::timestamptz[]
) AS letter (
    generation_id, kind, pdf_hash, page, locale, effective_mode, model, prompt_version, private,
    reason, message, permanent, attempts, failures, cost_nanodollars, created_at, failed_at
)
ON CONFLICT (generation_id) DO NOTHING
RETURNING failed_at
"""

# Newest first, after the place where the last page ended.
LIST_DEAD_LETTERS = f"""
SELECT {columns}
FROM worker.dead_letters
WHERE {matches} AND ($9 OR redriven_at IS NULL)
  AND ($10::timestamptz IS NULL OR (failed_at, generation_id) < ($10, $11::uuid))
ORDER BY failed_at DESC, generation_id DESC
LIMIT $12
"""

COUNT_DEAD_LETTERS = f"""
SELECT reason, count(*) AS number
FROM worker.dead_letters
WHERE {matches} AND ($9 OR redriven_at IS NULL)
GROUP BY reason
ORDER BY number DESC, reason
"""

# Oldest first, and not those that failed since the redrive began: it would never end.
CHOOSE_DEAD_LETTERS = f"""
SELECT generation_id, failed_at
FROM worker.dead_letters
WHERE {matches} AND redriven_at IS NULL AND failed_at <= $9
  AND (failed_at, generation_id) > ($10, $11::uuid)
ORDER BY failed_at, generation_id
LIMIT $12
"""

READ_DEAD_LETTER = f"SELECT {columns} FROM worker.dead_letters WHERE generation_id = $1"

MARK_REDRIVEN = """
UPDATE worker.dead_letters AS letter
SET redriven_at = now(), redriven_as = redriven.generation_id
FROM unnest($1::uuid[], $2::uuid[]) AS redriven (letter_id, generation_id)
WHERE letter.generation_id = redriven.letter_id AND letter.redriven_at IS NULL
"""

DELETE_OLD_DEAD_LETTERS = "DELETE FROM worker.dead_letters WHERE failed_at < now() - $1::interval"


class DeadLetterStore:
    """The dead letters."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_last_failure(self) -> datetime | None:
        """When the newest of them failed, by a clock that is right."""
        async with self._database.connection() as connection:
            last: datetime | None = await connection.fetchval(READ_LAST_FAILURE)
        return last

    async def read_clock(self) -> datetime:
        async with self._database.connection() as connection:
            now: datetime = await connection.fetchval(READ_CLOCK)
        return now

    async def list_known(self, generation_ids: Sequence[UUID]) -> set[UUID]:
        """Which of these are written down already."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_KNOWN, generation_ids)
        return {row["generation_id"] for row in rows}

    async def insert_dead_letters(self, letters: Sequence[DeadLetter]) -> int:
        """Write down those that are not known yet; answers how many."""
        rows = [_values(letter) for letter in letters]
        async with self._database.transaction() as connection:
            new = await connection.fetch(INSERT_DEAD_LETTERS, *map(list, zip(*rows, strict=True)))
            await mark_hours(connection, [row["failed_at"] for row in new])
        return len(new)

    async def list_dead_letters(
        self, chosen: Filter, *, include_redriven: bool, after: Place | None, most: int
    ) -> tuple[list[DeadLetter], int]:
        """One page, newest first, and how many there are in all at the same moment."""
        place = (after.failed_at, after.generation_id) if after else (None, None)
        which = (*_selectors(chosen), include_redriven)
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            counts = await connection.fetch(COUNT_DEAD_LETTERS, *which)
            rows = await connection.fetch(LIST_DEAD_LETTERS, *which, *place, most)
        return [letter_from(row) for row in rows], sum(row["number"] for row in counts)

    async def count_dead_letters(self, chosen: Filter) -> dict[str, int]:
        """How many failed for which reason and were not started anew, most first."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(COUNT_DEAD_LETTERS, *_selectors(chosen), False)
        return {row["reason"]: row["number"] for row in rows}

    async def choose_dead_letters(
        self, chosen: Filter, *, until: datetime, after: Place, most: int
    ) -> list[Place]:
        """The next of those that are to be started anew."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(
                CHOOSE_DEAD_LETTERS,
                *_selectors(chosen),
                until,
                after.failed_at,
                after.generation_id,
                most,
            )
        return [
            Place(failed_at=row["failed_at"], generation_id=row["generation_id"]) for row in rows
        ]

    async def read_dead_letter(self, generation_id: UUID) -> DeadLetter | None:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_DEAD_LETTER, generation_id)
        return letter_from(row) if row else None

    async def mark_redriven(self, redriven: Mapping[UUID, UUID]) -> None:
        """Note which generations took the place of which."""
        async with self._database.connection() as connection:
            await connection.execute(MARK_REDRIVEN, list(redriven), list(redriven.values()))

    async def delete_old_dead_letters(self, age: timedelta) -> None:
        async with self._database.connection() as connection:
            await connection.execute(DELETE_OLD_DEAD_LETTERS, age)


def _selectors(chosen: Filter) -> tuple[Any, ...]:
    return (
        chosen.reason,
        chosen.kind,
        chosen.pdf_hash,
        chosen.locale,
        chosen.model,
        chosen.begins_at,
        chosen.ends_at,
        chosen.generation_ids,
    )


def _values(letter: DeadLetter) -> tuple[Any, ...]:
    failures = [vars(one) | {"failed_at": one.failed_at.isoformat()} for one in letter.failures]
    return (
        letter.generation_id,
        letter.kind,
        letter.pdf_hash,
        letter.page,
        letter.locale,
        letter.effective_mode,
        letter.model,
        letter.prompt_version,
        letter.private,
        letter.reason,
        letter.message,
        letter.permanent,
        letter.attempts,
        # As text: a list of lists would be taken for an array of two dimensions.
        json.dumps(failures),
        letter.cost_nanodollars,
        letter.created_at,
        letter.failed_at,
    )


def letter_from(row: asyncpg.Record) -> DeadLetter:
    return DeadLetter(**{**dict(row), "failures": tuple(map(_failure, row["failures"]))})


def _failure(item: dict[str, Any]) -> AttemptFailure:
    return AttemptFailure(**{**item, "failed_at": datetime.fromisoformat(item["failed_at"])})
