"""SQL for the events of generations; one public method is one transaction."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import Any
from uuid import UUID

import asyncpg

from services.runtime.database import Connection, Database
from services.runtime.errors import DependencyDown
from services.runtime.periodic import Periodic, periodic
from services.worker.domain import Stage, Status
from services.worker.generation import Event, NewEvent

# Told which generations have new events.
OnEvent = Callable[[Sequence[UUID]], None]
# Told what was recorded by this process.
OnRecorded = Callable[[Event], None]

# At most fifty announcements a second from here, each within the 8,000 bytes Postgres allows.
ANNOUNCE_GAP_SECONDS = 0.02
IDS_PER_ANNOUNCEMENT = 200
RARELY = timedelta(hours=1)

GET_NEWEST_EVENT = """
SELECT
    generation_id, sequence, attempt, status, stage, done, total, error_reason, error_message
FROM worker.generation_events
WHERE generation_id = $1
ORDER BY sequence DESC
LIMIT 1
"""

# The next number, unless it comes too late: nothing follows an end, and an older attempt has
# nothing more to tell. Who records at the same time takes the same number, and the primary key lets
# one of them through: the other looks again.
APPEND_EVENT = """
INSERT INTO worker.generation_events (
    generation_id, attempt, status, stage, done, total, error_reason, error_message, sequence
)
SELECT $1, $2::integer, $3, $4, $5, $6, $7, $8, coalesce(newest.sequence, 0) + 1
FROM (SELECT) AS always
LEFT JOIN LATERAL (
    SELECT sequence, attempt, status
    FROM worker.generation_events
    WHERE generation_id = $1
    ORDER BY sequence DESC
    LIMIT 1
) AS newest ON true
WHERE newest.sequence IS NULL OR (newest.status = 'generating' AND newest.attempt <= $2::integer)
ON CONFLICT (generation_id, sequence) DO NOTHING
RETURNING sequence
"""

# Whether APPEND_EVENT found nothing to do, or somebody took its number.
IS_LATE = """
SELECT newest.status <> 'generating' OR newest.attempt > $2::integer
FROM worker.generation_events AS newest
WHERE newest.generation_id = $1
ORDER BY newest.sequence DESC
LIMIT 1
"""

# A hint for followers in other processes, which poll as well. Not part of the transactions that
# record: a notification holds up every commit of the database for a moment.
ANNOUNCE_EVENTS = "SELECT pg_notify('worker_events', $1)"

# Whole generations, once they have ended long ago: what is left of others has no gap, and sequences
# never start again for somebody who still watches. Nobody may have recorded the end: nothing that
# has been silent for a day longer is still alive.
DELETE_OLD_EVENTS = """
DELETE FROM worker.generation_events
WHERE generation_id = ANY(ARRAY(
    (
        SELECT ended.generation_id
        FROM worker.generation_events AS ended
        WHERE ended.status IN ('ready', 'failed') AND ended.created_at < now() - $1::interval
        ORDER BY ended.created_at
        LIMIT 1000
    )
    UNION ALL
    (
        SELECT beginning.generation_id
        FROM worker.generation_events AS beginning
        WHERE beginning.sequence = 1
          AND beginning.created_at < now() - $1::interval - interval '1 day'
          AND (
              SELECT newest.created_at
              FROM worker.generation_events AS newest
              WHERE newest.generation_id = beginning.generation_id
              ORDER BY newest.sequence DESC
              LIMIT 1
          ) < now() - $1::interval - interval '1 day'
        ORDER BY beginning.created_at
        LIMIT 1000
    )
))
"""

LIST_EVENTS = """
SELECT
    generation_id, sequence, attempt, status, stage, done, total, error_reason, error_message
FROM worker.generation_events
WHERE generation_id = $1 AND sequence > $2
ORDER BY sequence
"""

# Looked up one by one: a join would be planned to read everything that is kept.
LIST_EVENTS_OF_MANY = """
SELECT
    event.generation_id, event.sequence, event.attempt, event.status, event.stage,
    event.done, event.total, event.error_reason, event.error_message
FROM unnest($1::uuid[], $2::bigint[]) AS followed (generation_id, after_sequence)
CROSS JOIN LATERAL (
    SELECT *
    FROM worker.generation_events AS recorded
    WHERE recorded.generation_id = followed.generation_id
      AND recorded.sequence > followed.after_sequence
    OFFSET 0
) AS event
ORDER BY event.generation_id, event.sequence
"""


class EventStore:
    """The recorded events of generations."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Our own announcements come back to us; they are told apart by this name.
        self._name = secrets.token_hex(4)
        self._unannounced: set[UUID] = set()
        self._announcing: Periodic | None = None
        self._on_recorded: OnRecorded | None = None

    async def append_event(self, event: NewEvent) -> Event | None:
        """Records a change as the next in its sequence; None when it comes too late to count."""
        async with self._database.connection() as connection:
            while (sequence := await connection.fetchval(APPEND_EVENT, *_values(event))) is None:
                if await connection.fetchval(IS_LATE, event.generation_id, event.attempt):
                    return None
        recorded = _numbered(event, sequence)
        self._tell(recorded)
        return recorded

    @asynccontextmanager
    async def announcing(self) -> AsyncIterator[None]:
        """Tells other processes what is recorded here, several events at a time."""
        async with periodic(
            "announce_events", every=RARELY, run_once=self._announce
        ) as self._announcing:
            yield
        with suppress(DependencyDown):
            await self._announce()

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

    async def delete_old_events(self, age: timedelta) -> int:
        """Forget some generations that ended or fell silent long ago; answers how many events."""
        async with self._database.connection() as connection:
            tag = await connection.execute(DELETE_OLD_EVENTS, age)
        return int(tag.rpartition(" ")[2])

    async def listen(self, on_event: "OnEvent", on_recorded: "OnRecorded") -> None:
        """Calls back until the connection is lost: for every event that is recorded here, and for
        generations with events that were recorded elsewhere.
        """

        def hear(payload: str) -> None:
            name, _, ids = payload.partition(" ")
            if name != self._name:
                on_event([UUID(one) for one in ids.split(",")])

        self._on_recorded = on_recorded
        await self._database.listen({"worker_events": hear})

    def _tell(self, event: Event) -> None:
        """Those who follow it here at once, others in a moment."""
        if self._on_recorded is not None:
            self._on_recorded(event)
        self._unannounced.add(event.generation_id)
        if self._announcing is not None:
            self._announcing.wake()

    async def _announce(self) -> None:
        while self._unannounced:
            ids = list(islice(self._unannounced, IDS_PER_ANNOUNCEMENT))
            # Taken out first: what is recorded while this is sent has to be told again.
            self._unannounced.difference_update(ids)
            try:
                async with self._database.connection() as connection:
                    payload = f"{self._name} {','.join(map(str, ids))}"
                    await connection.execute(ANNOUNCE_EVENTS, payload)
            except BaseException:  # a cancellation too: it is sent once more at the end
                self._unannounced.update(ids)
                raise
            await asyncio.sleep(ANNOUNCE_GAP_SECONDS)


async def _newest(connection: Connection, generation_id: UUID) -> Event | None:
    row = await connection.fetchrow(GET_NEWEST_EVENT, generation_id)
    return _event(row) if row else None


def _values(event: NewEvent) -> tuple[Any, ...]:
    return (
        event.generation_id,
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
