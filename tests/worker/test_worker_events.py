"""Recorded events: in order, without gaps, fenced by attempt, ended once."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from services.runtime.database import open_database
from services.worker.domain import Failure, Lease, Progress, Stage, Status, Verdict
from services.worker.follower import Follower
from services.worker.generation import (
    GenerationView,
    NewEvent,
    failure_event,
    missing_end,
    progress_event,
    ready_event,
    snapshot,
)
from services.worker.store import EventStore
from tests.worker.waiting import until


@pytest.fixture
async def store(databases: Mapping[str, str]) -> AsyncIterator[EventStore]:
    async with open_database(databases["worker"], application_name="test") as database:
        yield EventStore(database)


@pytest.fixture
async def admin(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


def lease(attempt: int = 1, generation_id: UUID | None = None) -> Lease:
    return Lease(generation_id=generation_id or uuid4(), attempt=attempt)


def reading(of: Lease) -> NewEvent:
    return progress_event(of, Progress(stage=Stage.READING))


async def sequences(store: EventStore, generation_id: UUID) -> list[int]:
    return [event.sequence for event in await store.list_events(generation_id, after_sequence=0)]


async def test_simultaneous_events_of_a_generation_get_sequences_without_gap(
    store: EventStore,
) -> None:
    first, other = lease(), lease()

    await asyncio.gather(*(store.append_event(reading(one)) for one in (first, other) * 20))

    assert await sequences(store, first.generation_id) == list(range(1, 21))
    assert await sequences(store, other.generation_id) == list(range(1, 21))


async def test_an_older_attempt_has_nothing_more_to_tell(store: EventStore) -> None:
    new = lease(attempt=2)
    old = replace(new, attempt=1)
    await store.append_event(reading(old))
    await store.append_event(reading(new))

    assert await store.append_event(reading(old)) is None
    assert await store.append_event(ready_event(old)) is None
    assert await sequences(store, new.generation_id) == [1, 2]


async def test_racing_ends_are_recorded_once_and_nothing_follows(store: EventStore) -> None:
    one = lease()
    failed = failure_event(one, Failure(reason="R", message="m"), Verdict.ACCEPTED)

    recorded = await asyncio.gather(
        *(store.append_event(event) for event in (ready_event(one), failed) * 10)
    )

    assert len([event for event in recorded if event]) == 1
    assert await store.append_event(reading(replace(one, attempt=9))) is None
    assert await sequences(store, one.generation_id) == [1]


async def test_the_database_itself_refuses_a_second_end(
    store: EventStore, databases: Mapping[str, str]
) -> None:
    one = lease()
    await store.append_event(ready_event(one))
    connection = await asyncpg.connect(databases["worker"])
    try:
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute(
                "INSERT INTO worker.generation_events"
                " (generation_id, sequence, attempt, status, stage)"
                " VALUES ($1, 2, 1, 'failed', 'failed')",
                one.generation_id,
            )
    finally:
        await connection.close()


async def test_many_generations_are_read_at_once_each_from_its_own_sequence(
    store: EventStore,
) -> None:
    first, second = lease(), lease()
    for one in (first, second, first, second):
        await store.append_event(reading(one))

    events = await store.list_events_of_many({first.generation_id: 1, second.generation_id: 0})

    found = {(event.generation_id, event.sequence) for event in events}
    assert found == {
        (first.generation_id, 2),
        (second.generation_id, 1),
        (second.generation_id, 2),
    }


@asynccontextmanager
async def listening_on(store: EventStore) -> AsyncIterator[list[UUID]]:
    """What the store tells of meanwhile."""
    heard: list[UUID] = []
    task = asyncio.create_task(
        store.listen(heard.extend, lambda event: heard.append(event.generation_id))
    )
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_recorded_event_is_announced_to_other_processes(
    store: EventStore, databases: Mapping[str, str]
) -> None:
    async with (
        open_database(databases["worker"], application_name="other") as database,
        listening_on(EventStore(database)) as heard,
        store.announcing(),
    ):
        recorded: set[UUID] = set()
        while not heard:  # the first events may come before the listener stands
            one = lease()
            recorded.add(one.generation_id)
            await store.append_event(reading(one))

    assert set(heard) <= recorded


async def test_who_follows_here_is_told_at_once_and_once(store: EventStore) -> None:
    async with listening_on(store) as heard, store.announcing():
        await until(lambda: store._on_recorded is not None)
        for _ in range(3):
            await store.append_event(reading(lease()))
        assert len(heard) == 3
        # Our own announcements come back; whoever is heard again has been told by somebody else.
        await until(lambda: not store._unannounced)

    assert len(heard) == 3


async def test_many_events_are_announced_together(
    store: EventStore, databases: Mapping[str, str]
) -> None:
    connection = await asyncpg.connect(databases["worker"])
    announced: list[str] = []
    await connection.add_listener("worker_events", lambda *given: announced.append(str(given[-1])))
    events = [reading(lease()) for _ in range(250)]

    await asyncio.gather(*(store.append_event(event) for event in events))
    async with store.announcing():
        await until(lambda: len(",".join(announced).split(",")) == 250)
    await connection.close()

    assert len(announced) == 2
    assert max(map(len, announced)) < 8000


async def test_what_is_recorded_during_an_announcement_is_announced_again(
    store: EventStore, admin: "asyncpg.Connection[Any]", monkeypatch: pytest.MonkeyPatch
) -> None:
    held = "SELECT pg_notify('worker_events', $1) FROM (SELECT pg_advisory_xact_lock(42)) AS held"
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    monkeypatch.setattr("services.worker.store.ANNOUNCE_EVENTS", held)
    announced: list[str] = []
    await admin.add_listener("worker_events", lambda *given: announced.append(str(given[-1])))
    await admin.execute("SELECT pg_advisory_lock(42)")
    one = lease()
    async with store.announcing():
        await store.append_event(reading(one))
        while not await admin.fetchval(waiting):
            pass
        await store.append_event(reading(one))
        await admin.execute("SELECT pg_advisory_unlock(42)")
        await until(lambda: bool(announced) and not store._unannounced)
    await admin.execute("SELECT pg_notify('worker_events', 'that was all')")
    await until(lambda: "that was all" in announced)

    # Whoever heard the first may have looked before the second was there.
    told = [payload.partition(" ")[2] for payload in announced[:-1]]
    assert len(told) >= 2
    assert set(told) == {str(one.generation_id)}


async def test_only_generations_that_ended_long_ago_are_forgotten(
    store: EventStore, databases: Mapping[str, str]
) -> None:
    ended, old_and_alive, young = lease(), lease(), lease()
    for event in (reading(ended), ready_event(ended), reading(old_and_alive)):
        await store.append_event(event)
    connection = await asyncpg.connect(databases["worker"])
    await connection.execute(
        "UPDATE worker.generation_events SET created_at = created_at - interval '7.5 days'"
    )
    await connection.close()
    for event in (reading(young), ready_event(young)):
        await store.append_event(event)

    assert await store.delete_old_events(timedelta(days=7)) == 2
    assert await store.delete_old_events(timedelta(days=7)) == 0

    assert await sequences(store, ended.generation_id) == []
    assert await sequences(store, old_and_alive.generation_id) == [1]
    assert await sequences(store, young.generation_id) == [1, 2]


async def test_a_generation_whose_end_nobody_recorded_is_forgotten_a_day_later(
    store: EventStore, admin: "asyncpg.Connection[Any]"
) -> None:
    silent, still_going = lease(), lease()
    for one in (silent, silent, still_going):
        await store.append_event(reading(one))
    await admin.execute(
        "UPDATE worker.generation_events SET created_at = created_at - interval '8 days 1 minute'"
    )
    await store.append_event(reading(still_going))

    assert await store.delete_old_events(timedelta(days=7)) == 2
    assert await store.delete_old_events(timedelta(days=7)) == 0

    assert await sequences(store, silent.generation_id) == []
    assert await sequences(store, still_going.generation_id) == [1, 2]


@pytest.mark.parametrize(
    ("stage", "attempts", "told"),
    [
        (Stage.EXPLAINING, 1, (Stage.READING, 1, 1)),  # the event has the sequence
        (Stage.QUEUED, 1, (Stage.QUEUED, 1, 1)),  # the lease ran out
        (Stage.READING, 2, (Stage.READING, 2, 1)),  # a new attempt has begun
    ],
)
async def test_a_snapshot_prefers_the_newest_event_unless_the_cache_knows_more(
    store: EventStore, stage: Stage, attempts: int, told: tuple[Stage, int, int]
) -> None:
    newest = await store.append_event(reading(lease()))
    assert newest is not None
    view = GenerationView(
        generation_id=newest.generation_id,
        status=Status.GENERATING,
        stage=stage,
        attempts=attempts,
    )

    update = snapshot(view, newest)

    assert (update.stage, update.attempt, update.sequence) == told


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [(2, 1, True), (99, 98, True), (141, 140, False), (150, 140, True), (1001, 999, False)],
)
async def test_far_back_in_the_queue_not_every_step_is_told(
    before: int, now: int, told: bool
) -> None:
    view = GenerationView(
        generation_id=uuid4(),
        status=Status.GENERATING,
        stage=Stage.QUEUED,
        attempts=0,
        queue_position=before,
    )
    follower = Follower(view, lambda update: update.queue_position)
    seen = replace(snapshot(view, None), sequence=0)
    updates = follower.updates(seen, heartbeat=timedelta(milliseconds=1))
    assert await anext(updates) == before  # a heartbeat: it waits

    follower.see(replace(view, queue_position=now))
    first = await anext(updates)

    # Otherwise the next thing to come is a heartbeat, which repeats what was told.
    assert first == (now if told else before)


async def test_a_missing_end_is_recorded_whatever_attempt_was_recorded_before(
    store: EventStore,
) -> None:
    newest = await store.append_event(reading(lease(attempt=2)))
    assert newest is not None
    view = GenerationView(
        generation_id=newest.generation_id,
        status=Status.FAILED,
        stage=Stage.FAILED,
        attempts=1,
        error=Failure(reason="ATTEMPTS_SPENT", message="m"),
    )

    end = await store.append_event(missing_end(view, newest))

    assert end is not None
    assert (end.sequence, end.error_reason) == (2, "ATTEMPTS_SPENT")
