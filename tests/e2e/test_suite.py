"""The whole path over four real processes: uploaded, explained once, charged fairly, streamed."""

import asyncio
import os
import signal
import urllib.request
from collections import Counter

import grpc
import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from glossa.worker.v1 import worker_pb2
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import Street
from tests.suite import Suite, lecture

PAGE = "Entropy is a measure of disorder. A closed system tends towards higher entropy."


async def watch(
    suite: Suite, user: str, generation_id: str, after: int = 0
) -> list[worker_pb2.WatchGenerationResponse]:
    request = worker_pb2.WatchGenerationRequest(
        generation_id=generation_id, user_id=user, after_sequence=after
    )
    call = suite.worker.WatchGeneration(request, metadata=suite.bearer(), timeout=60)
    return [event async for event in call]


async def test_two_users_share_one_explanation_and_each_pays_a_fair_price(street: Street) -> None:
    suite, content = street.suite, lecture(PAGE)
    uploaded = await suite.upload("alice", content)
    pdf_hash = uploaded.file.pdf_hash

    first = await suite.explain("alice", pdf_hash)
    events = await watch(suite, "alice", first.generation_id)
    again = await suite.upload("bob", content)
    second = await suite.explain("bob", pdf_hash)

    assert first.outcome == quota_pb2.OUTCOME_GENERATED
    assert second.outcome == quota_pb2.OUTCOME_CACHED
    assert second.generation_id == first.generation_id
    assert list(second.stickers) == list(events[-1].stickers) != []
    assert street.model.calls == 1
    assert (uploaded.document.reference_count, again.document.reference_count) == (1, 2)
    assert [await street.balance(user) for user in ("alice", "bob")] == [999, 999]

    sequences = [event.sequence for event in events[1:] if not event.queue_position]
    stages = list(dict.fromkeys(event.stage for event in events if event.sequence))
    assert sequences == sorted(set(sequences))
    assert stages == [
        cache_pb2.STAGE_READING,
        cache_pb2.STAGE_EXPLAINING,
        cache_pb2.STAGE_READY,
    ]
    resumed = await watch(suite, "alice", first.generation_id, after=sequences[-1] - 1)
    assert resumed == events[-1:]

    await suite.registry.DeleteFile(
        registry_pb2.DeleteFileRequest(
            owner=registry_pb2.Owner(user_id="bob"), file_id=again.file.file_id
        ),
        metadata=suite.bearer(),
    )
    with pytest.raises(grpc.aio.AioRpcError) as gone:
        await suite.explain("bob", pdf_hash)
    assert gone.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_hash_without_the_document_and_a_call_without_a_token_are_refused(
    street: Street,
) -> None:
    uploaded = await street.suite.upload("alice", lecture(PAGE))
    pdf_hash = uploaded.file.pdf_hash

    with pytest.raises(grpc.aio.AioRpcError) as without_possession:
        await street.suite.explain("mallory", pdf_hash)
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await street.suite.explain("mallory", "0" * 64)
    request = cache_pb2.ExplainPageRequest(user_id="alice", pdf_hash=pdf_hash, page=1, locale="en")
    with pytest.raises(grpc.aio.AioRpcError) as without_token:
        await street.suite.cache.ExplainPage(request)

    assert without_possession.value.code() == grpc.StatusCode.NOT_FOUND
    assert without_possession.value.details() == unknown.value.details()
    assert without_token.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert street.model.calls == 0


async def test_two_hundred_callers_of_a_cold_page_cost_one_model_call(street: Street) -> None:
    suite, users = street.suite, [f"student-{n}" for n in range(200)]
    content = lecture(PAGE)
    uploads = await asyncio.gather(*(suite.upload(user, content) for user in users))
    pdf_hash = uploads[0].file.pdf_hash
    street.model.gate.clear()

    answers = await asyncio.gather(*(suite.explain(user, pdf_hash) for user in users))
    street.model.gate.set()
    generation_id = answers[0].generation_id
    endings = await asyncio.gather(*(watch(suite, user, generation_id) for user in users))

    assert {answer.generation_id for answer in answers} == {generation_id}
    outcomes = Counter(answer.outcome for answer in answers)
    assert outcomes == {quota_pb2.OUTCOME_GENERATED: 1, quota_pb2.OUTCOME_JOINED: 199}
    assert street.model.calls == 1
    assert all(ending[-1].status == cache_pb2.GENERATION_STATUS_READY for ending in endings)
    spent = await street.admin.fetchval("SELECT sum(1000 - balance_units) FROM quota.accounts")
    assert spent == 1


async def test_killing_the_worker_in_the_middle_is_seen_once_and_charged_once(
    street: Street,
) -> None:
    suite = street.suite
    uploaded = await suite.upload("alice", lecture(PAGE))
    street.model.gate.clear()
    answer = await suite.explain("alice", uploaded.file.pdf_hash)
    await street.model.wait_for_calls(1)

    os.kill(street.up.pid_of("services.worker"), signal.SIGKILL)
    await street.up.reads("worker is back")
    street.model.gate.set()
    events = await watch(suite, "alice", answer.generation_id)

    generation = await suite.generation(answer.generation_id)
    assert generation.attempts == 2
    assert generation.status == cache_pb2.GENERATION_STATUS_READY
    ready = [event for event in events if event.status == cache_pb2.GENERATION_STATUS_READY]
    assert len(ready) == 1
    assert await street.balance("alice") == 999
    charges = await street.admin.fetchval(
        "SELECT count(*) FROM quota.ledger_entries WHERE user_id = 'alice' AND kind = 'charge'"
    )
    assert charges == 1


async def test_a_frozen_worker_changes_nothing_when_it_wakes(street: Street) -> None:
    suite, model = street.suite, street.model
    uploaded = await suite.upload("alice", lecture(PAGE))
    model.gate.clear()
    answer = await suite.explain("alice", uploaded.file.pdf_hash)
    await model.wait_for_calls(1)
    worker = street.up.pid_of("services.worker")
    before = await leases_lost(street)

    os.kill(worker, signal.SIGSTOP)
    try:
        job = await lease_as(suite, "another-worker")  # comes when the first lease has run out
        completed = await complete_as(suite, "another-worker", job, title="Fresh")
        ready = await suite.generation(answer.generation_id)
        model.gate.set()  # the answer waits for the frozen one
    finally:
        os.kill(worker, signal.SIGCONT)
    while await leases_lost(street) == before:  # noqa: ASYNC110 - a counter gives no event
        await asyncio.sleep(0.05)

    assert completed == jobs_pb2.JOB_VERDICT_ACCEPTED
    assert job.lease.attempt == 2
    assert ready.status == cache_pb2.GENERATION_STATUS_READY
    assert await suite.generation(answer.generation_id) == ready
    assert [sticker.title for sticker in ready.stickers] == ["Fresh"]
    assert await street.balance("alice") == 999
    # And it is a worker like any other again.
    other = await suite.explain("alice", (await suite.upload("alice", lecture(PAGE))).file.pdf_hash)
    events = await watch(suite, "alice", other.generation_id)
    assert events[-1].status == cache_pb2.GENERATION_STATUS_READY


async def leases_lost(street: Street) -> float:
    """What the Cache's metrics port says, over all calls."""
    url = f"http://{street.up.ports.metrics_address('cache')}/metrics"
    with await asyncio.to_thread(urllib.request.urlopen, url) as page:
        families = text_string_to_metric_families(page.read().decode())
    samples = [sample for family in families for sample in family.samples]
    return sum(one.value for one in samples if one.name == "glossa_cache_leases_lost_total")


async def lease_as(suite: Suite, worker_id: str) -> jobs_pb2.Job:
    stream = suite.jobs.LeaseJobs(metadata=suite.bearer("worker"))
    await stream.write(jobs_pb2.LeaseJobsRequest(worker_id=worker_id, credits=1))
    response = await stream.read()
    assert isinstance(response, jobs_pb2.LeaseJobsResponse)
    stream.cancel()
    return response.job


async def complete_as(
    suite: Suite, worker_id: str, job: jobs_pb2.Job, *, title: str
) -> "jobs_pb2.JobVerdict.ValueType":
    sticker = cache_pb2.Sticker(
        sticker_id="s1", kind=cache_pb2.STICKER_KIND_TERM, title=title, body_markdown="Disorder."
    )
    item = jobs_pb2.CompleteJobsRequest.Item(lease=job.lease, stickers=[sticker])
    response = await suite.jobs.CompleteJobs(
        jobs_pb2.CompleteJobsRequest(worker_id=worker_id, items=[item]),
        metadata=suite.bearer("worker"),
    )
    return response.verdicts[0]
