"""A worker that is told to go: not serving first, no new jobs, and nothing lost on the way."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY

from services.runtime.errors import GlossaError
from services.worker.__main__ import open_worker
from services.worker.clients import Jobs
from services.worker.config import Config
from services.worker.domain import Lease
from tests.fake_openai import FakeOpenAI
from tests.suite import Suite, lecture
from tests.worker.conftest import StartWorker
from tests.worker.proxy import proxied
from tests.worker.test_lease_loop import ask, count, until_ended, until_generation
from tests.worker.waiting import until

READY = cache_pb2.GENERATION_STATUS_READY
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = "glossa.worker.v1.WorkerService"


@pytest.fixture
async def admin(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


async def test_it_says_so_first_and_takes_nothing_more_while_attempts_finish(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    def streams_ended() -> float:
        return count("glossa_cache_requests_total", method="LeaseJobs", code="OK")

    before = streams_ended()
    model.gate.clear()
    worker = AsyncExitStack()
    running = await worker.enter_async_context(start_worker(attempt_grace_seconds=60))
    async with grpc.aio.insecure_channel(running.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        question = health_pb2.HealthCheckRequest(service=SERVICE)
        states = health.Watch(question, metadata=cluster.bearer("worker"))
        await states.read()
        under_way = await ask(cluster)
        await model.wait_for_calls(1)

        leaving = asyncio.create_task(worker.aclose())
        while (await states.read()).status != NOT_SERVING:
            pass
        # It is not serving, and its attempt still runs; the Cache has ended its stream of jobs.
        await until(lambda: streams_ended() > before)
        assert (await cluster.generation(under_way)).status != READY
        later = await ask(cluster, user="bob")
        model.gate.set()
        await leaving

    done = await cluster.generation(under_way)
    assert (done.status, done.attempts) == (READY, 1)
    assert (await cluster.generation(later)).attempts == 0


async def test_a_result_that_is_being_handed_in_is_not_thrown_away(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, admin: "asyncpg.Connection[Any]"
) -> None:
    def streams_ended() -> float:
        return count("glossa_cache_requests_total", method="LeaseJobs", code="OK")

    before = streams_ended()
    model.gate.clear()
    async with proxied(cluster.addresses["cache"]) as proxy:
        worker = AsyncExitStack()
        await worker.enter_async_context(
            start_worker(cache_address=proxy.address, attempt_grace_seconds=0)
        )
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        proxy.passing.clear()  # the Cache hears the worker, but not the other way round
        model.gate.set()
        await until_ended(cluster, generation_id)
        leaving = asyncio.create_task(worker.aclose())
        await until(lambda: streams_ended() > before)  # it has been told to go
        proxy.passing.set()
        await leaving

    ends = await admin.fetch(
        "SELECT status FROM worker.generation_events WHERE status <> 'generating'"
    )
    assert [row["status"] for row in ends] == ["ready"]


async def test_a_drain_ends_with_the_stream_of_jobs(
    model: FakeOpenAI, worker_config: Callable[..., Config]
) -> None:
    """Otherwise a job could still be on its way to a worker that is gone."""

    def taking() -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks() if task.get_name() == "take_jobs"]

    async with open_worker(worker_config()) as (loop, _), loop.working():
        assert len(taking()) == 1
        await loop.drain(timedelta())
        assert taking() == []


async def test_a_drain_between_two_streams_asks_for_nothing(
    model: FakeOpenAI, worker_config: Callable[..., Config]
) -> None:
    async with open_worker(worker_config()) as (loop, _):
        await loop.drain(timedelta())

        assert await anext(loop._stream_of_credits(), None) is None


class FailedReleases:
    """Knows whether giving back has failed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = asyncio.Event()
        release_jobs = Jobs.release_jobs

        async def release_and_tell(jobs: Jobs, leases: Sequence[Lease]) -> None:
            try:
                await release_jobs(jobs, leases)
            except GlossaError:
                self.seen.set()
                raise

        monkeypatch.setattr(Jobs, "release_jobs", release_and_tell)


async def test_jobs_are_given_back_to_a_cache_that_was_away_for_a_moment(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    admin: "asyncpg.Connection[Any]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = FailedReleases(monkeypatch)
    model.gate.clear()
    async with proxied(cluster.addresses["cache"]) as proxy:
        worker = AsyncExitStack()
        await worker.enter_async_context(
            start_worker(cache_address=proxy.address, attempt_grace_seconds=0, renew_seconds=20)
        )
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        explaining = cache_pb2.STAGE_EXPLAINING
        await until_generation(cluster, generation_id, lambda one: one.stage == explaining)
        await admin.execute("UPDATE cache.generations SET leased_until = now() + interval '1 hour'")
        proxy.down = True
        proxy.cut()
        leaving = asyncio.create_task(worker.aclose())
        await failed.seen.wait()
        proxy.down = False
        await leaving

    row = await admin.fetchrow("SELECT attempts - released, leased_by FROM cache.generations")
    assert row is not None
    assert tuple(row) == (0, None)


async def test_a_job_that_was_on_its_way_is_given_back_without_an_attempt(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    admin: "asyncpg.Connection[Any]",
) -> None:
    """Jobs come all the time while workers come and go: none of them loses an attempt."""
    asked: list[str] = []

    async def keep_asking() -> None:
        number = 0
        while True:
            asked.append(await ask(cluster, user=f"user-{number}"))
            number += 1

    asking = asyncio.create_task(keep_asking())
    for _ in range(5):
        before = len(asked)
        async with start_worker():
            await until(lambda before=before: len(asked) > before + 3)  # type: ignore[misc]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    held = await admin.fetchval("SELECT count(*) FROM cache.generations WHERE leased_by <> ''")
    assert held == 0

    async with start_worker():
        for generation_id in asked:
            assert (await until_ended(cluster, generation_id)).status == READY
    tried = await admin.fetch(
        "SELECT DISTINCT attempts - released AS tried, jsonb_array_length(failures) AS failed"
        " FROM cache.generations WHERE copied_from IS NULL"
    )
    assert [tuple(row) for row in tried] == [(1, 0)]


async def test_a_job_lost_on_a_broken_wire_comes_back_at_once_without_an_attempt(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, admin: "asyncpg.Connection[Any]"
) -> None:
    async with (
        proxied(cluster.addresses["cache"]) as proxy,
        start_worker(cache_address=proxy.address, concurrency=2),
    ):
        await until_ended(cluster, await ask(cluster))  # the stream stands
        proxy.swallow = True  # what the Cache sends from now on arrives nowhere
        uploaded = await cluster.upload("bob", lecture("A page of its own."))
        generation_id = (await cluster.explain("bob", uploaded.document.pdf_hash)).generation_id
        while not await admin.fetchval("SELECT count(leased_by) FROM cache.generations"):
            pass
        proxy.swallow = False
        proxy.cut()
        generation = await until_ended(cluster, generation_id)

    assert generation.status == READY
    row = await admin.fetchrow(
        "SELECT attempts - released AS tried, released FROM cache.generations"
        " WHERE generation_id = $1",
        generation_id,
    )
    assert row is not None
    assert tuple(row) == (1, 1)


async def test_of_two_attempts_at_one_page_the_older_is_stopped_and_the_newer_goes_on(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, admin: "asyncpg.Connection[Any]"
) -> None:
    def cancelled() -> float:
        return count("glossa_worker_attempts_total", result="cancelled")

    before, lost = cancelled(), count("glossa_worker_leases_lost_total")
    model.gate.clear()
    # No renewal by itself: only the new attempt makes the worker speak of both.
    async with start_worker(renew_seconds=20, worker_id="both"):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        await admin.execute(
            "UPDATE cache.generations SET leased_by = 'somebody',"
            " leased_until = now() - interval '1 second'"
        )
        await model.wait_for_calls(2)
        await until(lambda: cancelled() == before + 1)
        held = await admin.fetchrow("SELECT leased_by, attempts FROM cache.generations")
        model.gate.set()
        generation = await until_ended(cluster, generation_id)

    assert held is not None
    assert tuple(held) == ("both", 2)
    assert (generation.status, generation.attempts) == (READY, 2)
    assert count("glossa_worker_leases_lost_total") == lost + 1
    assert REGISTRY.get_sample_value("glossa_worker_attempts_total", {"result": "ready"})


async def test_a_worker_that_waits_long_for_jobs_is_not_taken_for_frozen(
    cluster: Suite, start_worker: StartWorker
) -> None:
    async with start_worker(renew_seconds=0.02):
        # Between two jobs it says nothing for longer than it promised, were it not for heartbeats.
        for number in range(5):
            generation_id = await ask(cluster, user=f"user-{number}")
            await until_generation(cluster, generation_id, lambda one: one.status == READY)
