"""Restarts and lost heartbeats: what a worker leaves behind costs no attempt."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from glossa.cache.v1 import cache_pb2
from prometheus_client import REGISTRY

from tests.cache.leases import capture_log
from tests.fake_openai import FakeOpenAI
from tests.suite import Suite
from tests.worker.conftest import StartWorker
from tests.worker.proxy import proxied
from tests.worker.test_lease_loop import ask, until_ended
from tests.worker.waiting import until

READY = cache_pb2.GENERATION_STATUS_READY
MORE_THAN_ATTEMPTS = 4


@pytest.fixture
async def admin(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


async def lease_of(admin: "asyncpg.Connection[Any]") -> tuple[str | None, int, int]:
    """Who holds the only generation, how often it was taken up, and how often given back."""
    row = await admin.fetchrow("SELECT leased_by, attempts, released FROM cache.generations")
    assert row is not None
    return row["leased_by"], row["attempts"], row["released"]


async def test_a_worker_restarted_in_the_middle_gives_its_job_to_the_next(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    admin: "asyncpg.Connection[Any]",
) -> None:
    model.gate.clear()
    async with start_worker(worker_id="old"):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        assert await lease_of(admin) == ("old", 1, 0)
    assert await lease_of(admin) == (None, 1, 1)

    model.gate.set()
    async with start_worker(worker_id="new"):
        generation = await until_ended(cluster, generation_id)

    assert (generation.status, generation.attempts) == (READY, 2)
    assert await lease_of(admin) == (None, 2, 1)


async def test_any_number_of_restarts_uses_up_no_attempt(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    admin: "asyncpg.Connection[Any]",
) -> None:
    model.gate.clear()
    generation_id = await ask(cluster)
    for number in range(1, MORE_THAN_ATTEMPTS + 1):
        async with start_worker():
            await model.wait_for_calls(number)
        assert await lease_of(admin) == (None, number, number)

    model.gate.set()
    async with start_worker():
        generation = await until_ended(cluster, generation_id)

    assert generation.status == READY


async def test_what_a_drained_worker_gave_back_was_not_lost(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    def lost() -> float:
        return REGISTRY.get_sample_value("glossa_worker_leases_lost_total") or 0.0

    before = lost()
    model.gate.clear()
    async with start_worker():
        await ask(cluster)
        await model.wait_for_calls(1)

    assert lost() == before


async def test_a_heartbeat_that_fails_does_not_end_the_work(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    admin: "asyncpg.Connection[Any]",
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = capture_log(monkeypatch, "services.worker.lease_loop")
    model.gate.clear()
    async with (
        proxied(cluster.addresses["cache"]) as proxy,
        start_worker(cache_address=proxy.address),
    ):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        proxy.down = True
        proxy.cut()
        # The lease holds for as long as the wire is cut.
        await admin.execute(
            "UPDATE cache.generations SET leased_until = now() + interval '1 hour',"
            " deadline_at = now() + interval '1 hour'"
        )
        await until(lambda: "leases_not_renewed" in {one["event"] for one in log.entries})
        proxy.down = False
        model.gate.set()
        generation = await until_ended(cluster, generation_id)

    assert (generation.status, generation.attempts) == (READY, 1)
    assert model.calls == 1
