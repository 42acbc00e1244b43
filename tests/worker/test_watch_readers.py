"""Watchers that wait long, read slowly or come back late; and events nobody announced."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.worker.v1 import worker_pb2
from prometheus_client import REGISTRY

from services.runtime.database import open_database
from services.worker.clients import Cache
from services.worker.domain import Lease, Progress, Stage
from services.worker.generation import GenerationView, progress_event
from services.worker.metrics import FOLLOWED
from services.worker.store import EventStore
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAI
from tests.suite import Suite
from tests.worker.conftest import StartWorker
from tests.worker.test_lease_loop import until_ended
from tests.worker.test_watch_generation import READY, Call, ask, gauge, reason_of, stages, watch_on
from tests.worker.waiting import until

# A window that is never made larger: what does not fit stays at the server until it is read.
SMALL_WINDOW = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1024),
    ("grpc.use_local_subchannel_pool", 1),
]


@pytest.fixture
async def admin(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


def large_notes() -> fake.Answer:
    """More than fits into any small window."""
    return fake.notes(
        *(
            {
                "kind": "concept",
                "title": f"Concept {number}",
                "body_markdown": f"Entropy number {number} grows. " * 500,
                "quote": "",
            }
            for number in range(12)
        )
    )


async def messages(call: Call) -> AsyncIterator[worker_pb2.WatchGenerationResponse]:
    while isinstance(message := await call.read(), worker_pb2.WatchGenerationResponse):
        yield message


async def test_while_nothing_happens_a_heartbeat_comes_and_repeats_what_was_told(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.gate.clear()
    async with (
        start_worker(heartbeat_seconds=0.05) as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        stream = messages(watch_on(cluster, channel)(generation_id))
        first = await anext(stream)
        beats = [await anext(stream) for _ in range(3)]
        model.gate.set()
        rest = [update async for update in stream if not update.heartbeat]

    assert (first.snapshot, first.heartbeat) == (True, False)
    for beat in beats:
        assert (beat.snapshot, beat.heartbeat) == (False, True)
        beat.heartbeat, beat.snapshot = False, True
        assert beat == first
    assert stages(rest) == [(3, READY)]
    assert not rest[-1].snapshot


async def test_a_reader_that_takes_nothing_is_cut_and_holds_nobody_up(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    def cut() -> float:
        return REGISTRY.get_sample_value("glossa_worker_slow_readers_total") or 0

    model.always(large_notes())
    model.gate.clear()
    before = cut()
    async with (
        start_worker(slow_reader_seconds=0.3) as worker,
        grpc.aio.insecure_channel(worker.address, options=SMALL_WINDOW) as lazy,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        slow = watch_on(cluster, lazy)(generation_id)
        seen = await slow.read()
        assert isinstance(seen, worker_pb2.WatchGenerationResponse)
        watchers = [watch_on(cluster, channel)(generation_id) for _ in range(20)]
        for watcher in watchers:
            await watcher.read()
        model.gate.set()

        ends = [[message async for message in messages(one)][-1] for one in watchers]
        await until(lambda: cut() == before + 1)
        assert {end.stage for end in ends} == {READY}

        # It comes back to its stream, hears that it was cut, and goes on where it stopped.
        assert await reason_of(messages(slow)) == ("UNAVAILABLE", "READER_TOO_SLOW")
        resumed = watch_on(cluster, channel)(generation_id, after_sequence=seen.sequence)
        told = [message async for message in messages(resumed)]

    assert stages(told) == [(3, READY)]
    assert told[0].stickers


@pytest.mark.parametrize("seen", [0, 1, 2, 3])
async def test_who_comes_back_after_everything_was_forgotten_gets_an_honest_snapshot(
    cluster: Suite,
    start_worker: StartWorker,
    admin: "asyncpg.Connection[Any]",
    databases: Mapping[str, str],
    seen: int,
) -> None:
    async with (
        start_worker() as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        watch = watch_on(cluster, channel)
        generation_id = await ask(cluster)
        _ = [message async for message in messages(watch(generation_id))]
        await admin.execute(
            "UPDATE worker.generation_events SET created_at = now() - interval '8 days'"
        )
    async with start_worker() as worker, grpc.aio.insecure_channel(worker.address) as channel:
        # The duty that forgets runs at the start.
        while await admin.fetchval("SELECT count(*) FROM worker.generation_events"):
            pass
        call = watch_on(cluster, channel)(generation_id, after_sequence=seen)
        told = [message async for message in messages(call)]
        left = await admin.fetchval("SELECT count(*) FROM worker.generation_events")

    [only] = told
    assert only.snapshot
    assert (only.sequence, only.stage) == (seen, READY)
    assert only.stickers
    assert left == 0  # nothing is numbered anew


async def test_an_event_that_nobody_announced_is_found_all_the_same(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, databases: Mapping[str, str]
) -> None:
    model.gate.clear()
    async with (
        start_worker() as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
        open_database(databases["worker"], application_name="silent") as database,
    ):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        stream = messages(watch_on(cluster, channel)(generation_id))
        first = await anext(stream)
        # Another worker dies between recording it and telling others of it.
        lease = Lease(generation_id=UUID(generation_id), attempt=1)
        progress = Progress(stage=Stage.EXPLAINING, done=1, total=2)
        await EventStore(database).append_event(progress_event(lease, progress))
        second = await anext(stream)
        model.gate.set()
        rest = [message async for message in stream]

    assert (first.sequence, second.sequence, second.done) == (2, 3, 1)
    assert stages(rest) == [(4, READY)]


async def test_changes_made_by_one_replica_reach_the_watchers_of_another(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.gate.clear()
    async with start_worker(concurrency=1):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        async with (
            start_worker(concurrency=1) as looker,
            grpc.aio.insecure_channel(looker.address) as channel,
        ):
            stream = messages(watch_on(cluster, channel)(generation_id))
            first = await anext(stream)
            model.gate.set()
            rest = [message async for message in stream]

    assert first.stage == cache_pb2.STAGE_EXPLAINING
    assert stages(rest) == [(3, READY)]
    assert model.calls == 1


class SlowResults:
    """Holds every question for a result until `answering` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.answering = asyncio.Event()
        get_generation = Cache.get_generation

        async def get_slowly(
            cache: Cache, generation_id: UUID, *, user_id: str = ""
        ) -> GenerationView:
            if not user_id:  # it is not how a watch begins
                self.asked.append(str(generation_id))
                await self.answering.wait()
            return await get_generation(cache, generation_id, user_id=user_id)

        monkeypatch.setattr(Cache, "get_generation", get_slowly)
        monkeypatch.setattr("services.worker.watch.EVERY", timedelta(milliseconds=10))


def looks() -> float:
    labels = {"method": "GetGenerations", "code": "OK"}
    return REGISTRY.get_sample_value("glossa_cache_requests_total", labels) or 0


async def test_a_slow_cache_is_asked_for_a_result_once(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = SlowResults(monkeypatch)
    model.gate.clear()
    async with start_worker() as worker, grpc.aio.insecure_channel(worker.address) as channel:
        generation_id = await ask(cluster)
        stream = messages(watch_on(cluster, channel)(generation_id))
        await anext(stream)
        model.gate.set()
        await until(lambda: bool(results.asked))
        before = looks()
        await until(lambda: looks() > before + 3)
        results.answering.set()
        told = [message async for message in stream]

    assert told[-1].stage == READY
    assert results.asked == [generation_id]


async def test_a_result_that_nobody_waits_for_any_more_is_not_fetched(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.worker.watch.CACHE_CALLS", 1)
    results = SlowResults(monkeypatch)
    model.gate.clear()
    async with start_worker() as worker, grpc.aio.insecure_channel(worker.address) as channel:
        calls = {}
        for user in ("ada", "bob"):
            generation_id = await ask(cluster, user=user)
            calls[generation_id] = watch_on(cluster, channel)(generation_id, user_id=user)
            await calls[generation_id].read()
        model.gate.set()
        for generation_id in calls:
            await until_ended(cluster, generation_id)
        await until(lambda: bool(results.asked))
        before = looks()
        await until(lambda: looks() > before + 3)  # the other one waits for its turn
        stays = calls.pop(results.asked[0])
        [leaves] = calls.values()
        leaves.cancel()
        await until(lambda: gauge(FOLLOWED) == 1)
        results.answering.set()
        told = [message async for message in messages(stays)]

    assert told[-1].stage == READY
    assert len(results.asked) == 1
