"""Every SQL statement of the schema `worker`; one public method is one transaction."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from services.runtime.database import Connection, Database
from services.worker.domain import Stage, Status
from services.worker.generation import Event, NewEvent, is_late

# Events of one generation are recorded one after another, so that sequences have no gap.
LOCK_GENERATION = "SELECT pg_advisory_xact_lock(hashtextextended('worker:' || $1::uuid::text, 0))"

GET_NEWEST_EVENT = """
SELECT
    generation_id, sequence, attempt, status, stage, done, total, error_reason, error_message
FROM worker.generation_events
WHERE generation_id = $1
ORDER BY sequence DESC
LIMIT 1
"""

# The notification is a hint for followers in other processes; they poll as well.
INSERT_EVENT = """
INSERT INTO worker.generation_events (
    generation_id, sequence, attempt, status, stage, done, total, error_reason, error_message
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
RETURNING pg_notify('worker_events', generation_id::text)
"""

LIST_EVENTS = """
SELECT
    generation_id, sequence, attempt, status, stage, done, total, error_reason, error_message
FROM worker.generation_events
WHERE generation_id = $1 AND sequence > $2
ORDER BY sequence
"""

LIST_EVENTS_OF_MANY = """
SELECT
    event.generation_id, event.sequence, event.attempt, event.status, event.stage,
    event.done, event.total, event.error_reason, event.error_message
FROM unnest($1::uuid[], $2::bigint[]) AS followed (generation_id, after_sequence)
INNER JOIN worker.generation_events AS event
    ON event.generation_id = followed.generation_id
    AND event.sequence > followed.after_sequence
ORDER BY event.generation_id, event.sequence
"""


class EventStore:
    """The recorded events of generations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append_event(self, event: NewEvent) -> Event | None:
        """Records a change as the next in its sequence; None when it comes too late to count."""
        async with self._database.transaction() as connection:
            await connection.execute(LOCK_GENERATION, event.generation_id)
            newest = await _newest(connection, event.generation_id)
            if is_late(event, newest):
                return None
            sequence = newest.sequence + 1 if newest else 1
            await connection.execute(INSERT_EVENT, *_values(event, sequence))
        return _numbered(event, sequence)

    async def get_newest_event(self, generation_id: UUID) -> Event | None:
        async with self._database.connection() as connection:
            return await _newest(connection, generation_id)

    async def list_events(self, generation_id: UUID, *, after_sequence: int) -> list[Event]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_EVENTS, generation_id, after_sequence)
        return [_event(row) for row in rows]

    async def list_events_of_many(self, after: Mapping[UUID, int]) -> Sequence[Event]:
        """What came after the given sequence of each generation, in order."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_EVENTS_OF_MANY, list(after), list(after.values()))
        return [_event(row) for row in rows]

    async def listen(self, on_event: Callable[[], None]) -> None:
        """Calls `on_event` for every recorded event, until the connection is lost."""
        await self._database.listen({"worker_events": lambda _: on_event()})


async def _newest(connection: Connection, generation_id: UUID) -> Event | None:
    row = await connection.fetchrow(GET_NEWEST_EVENT, generation_id)
    return _event(row) if row else None


def _values(event: NewEvent, sequence: int) -> tuple[Any, ...]:
    return (
        event.generation_id,
        sequence,
        event.attempt,
        event.status.value,
        event.stage.value,
        event.done,
        event.total,
        event.error_reason,
        event.error_message,
    )


def _numbered(event: NewEvent, sequence: int) -> Event:
    return Event(**{**vars(event), "sequence": sequence})


def _event(row: asyncpg.Record) -> Event:
    return Event(
        generation_id=row["generation_id"],
        sequence=row["sequence"],
        attempt=row["attempt"],
        status=Status(row["status"]),
        stage=Stage(row["stage"]),
        done=row["done"],
        total=row["total"],
        error_reason=row["error_reason"],
        error_message=row["error_message"],
    )
