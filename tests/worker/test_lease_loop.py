"""Taking jobs and keeping leases: credits, renewals, lost leases, broken streams, drain."""

import asyncio
from collections.abc import Callable

import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from prometheus_client import REGISTRY

from tests.fake_openai import FakeOpenAI
from tests.suite import Suite, lecture
from tests.worker.conftest import StartWorker
from tests.worker.proxy import proxied
from tests.worker.waiting import until


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def until_counted(name: str, more_than: float, **labels: str) -> None:
    await until(lambda: count(name, **labels) > more_than)


async def ask(suite: Suite, user: str = "ada") -> str:
    uploaded = await suite.upload(user, lecture("A tree is a connected graph without cycles."))
    return (await suite.explain(user, uploaded.document.pdf_hash)).generation_id


async def until_ended(suite: Suite, generation_id: str) -> cache_pb2.Generation:
    return await until_generation(
        suite, generation_id, lambda one: one.status != cache_pb2.GENERATION_STATUS_GENERATING
    )


async def until_generation(
    suite: Suite, generation_id: str, condition: Callable[[cache_pb2.Generation], bool]
) -> cache_pb2.Generation:
    while True:
        generation = await suite.generation(generation_id)
        if condition(generation):
            return generation
        await asyncio.sleep(0.01)


async def test_no_more_jobs_run_at_a_time_than_there_are_credits(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.gate.clear()
    async with start_worker(concurrency=2):
        asked = [await ask(cluster, user=f"user-{number}") for number in range(4)]
        await model.wait_for_calls(2)
        waiting = [one for one in asked if (await cluster.generation(one)).attempts == 0]
        assert len(waiting) == 2

        model.gate.set()
        ended = [await until_ended(cluster, one) for one in asked]

    assert {one.status for one in ended} == {cache_pb2.GENERATION_STATUS_READY}
    assert model.calls == 4


async def test_heartbeats_carry_a_job_past_its_lease(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    renewals = {"method": "RenewLeases", "code": "OK"}
    model.gate.clear()
    async with start_worker():
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        before = count("glossa_cache_requests_total", **renewals)
        # Twelve renewals 0.2 s apart outlast a lease of 1.5 s.
        await until_counted("glossa_cache_requests_total", before + 12, **renewals)
        model.gate.set()
        generation = await until_ended(cluster, generation_id)

    assert generation.attempts == 1
    assert model.calls == 1


async def test_stages_reach_the_cache_at_once(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.gate.clear()
    async with start_worker(renew_seconds=20):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        explaining = cache_pb2.STAGE_EXPLAINING
        await until_generation(cluster, generation_id, lambda one: one.stage == explaining)
        model.gate.set()
        await until_ended(cluster, generation_id)


async def test_a_lost_lease_stops_the_work_at_once(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    lost = count("glossa_worker_leases_lost_total")
    cancelled = count("glossa_worker_attempts_total", result="cancelled")
    model.gate.clear()
    async with start_worker(worker_id="zombie"):
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)

        await end_behind_its_back(cluster, generation_id)
        await until_counted("glossa_worker_attempts_total", cancelled, result="cancelled")

    assert count("glossa_worker_leases_lost_total") == lost + 1
    generation = await cluster.generation(generation_id)
    assert generation.error.reason == "STOLEN"


async def end_behind_its_back(suite: Suite, generation_id: str) -> None:
    lease = jobs_pb2.Lease(generation_id=generation_id, attempt=1)
    item = jobs_pb2.FailJobsRequest.Item(
        lease=lease, reason="STOLEN", message="taken away", permanent=True
    )
    request = jobs_pb2.FailJobsRequest(worker_id="zombie", items=[item])
    response = await suite.jobs.FailJobs(request, metadata=suite.bearer("worker"))
    assert list(response.verdicts) == [jobs_pb2.JOB_VERDICT_ACCEPTED]


async def test_a_broken_stream_is_opened_again_and_the_attempt_goes_on(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.gate.clear()
    async with (
        proxied(cluster.addresses["cache"]) as proxy,
        start_worker(cache_address=proxy.address, concurrency=2),
    ):
        before = await ask(cluster)
        await model.wait_for_calls(1)
        proxy.cut()
        after = await ask(cluster, user="bob")
        await model.wait_for_calls(2)
        model.gate.set()
        ended = [await until_ended(cluster, one) for one in (before, after)]

    assert [one.status for one in ended] == [cache_pb2.GENERATION_STATUS_READY] * 2
    assert [one.attempts for one in ended] == [1, 1]


@pytest.mark.parametrize("grace", [10, 0])
async def test_a_drain_lets_attempts_finish_within_the_grace(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, grace: int
) -> None:
    ready = count("glossa_worker_attempts_total", result="ready")
    cancelled = count("glossa_worker_attempts_total", result="cancelled")
    model.gate.clear()
    async with start_worker(attempt_grace_seconds=grace):
        await ask(cluster)
        await model.wait_for_calls(1)
        if grace:
            asyncio.get_running_loop().call_soon(model.gate.set)

    assert count("glossa_worker_attempts_total", result="ready") == ready + bool(grace)
    assert count("glossa_worker_attempts_total", result="cancelled") == cancelled + (not grace)
