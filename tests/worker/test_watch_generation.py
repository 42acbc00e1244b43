"""WatchGeneration through the whole suite: order, resumption, access, ends, and no leaks."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable

import grpc
import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.worker.v1 import worker_pb2
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub
from prometheus_client import Gauge

from services.runtime.server import Running
from services.runtime.status import from_call
from services.worker.metrics import FOLLOWED, WATCHERS
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAI
from tests.suite import Suite, lecture
from tests.worker.conftest import StartWorker
from tests.worker.waiting import until

READING, EXPLAINING = cache_pb2.STAGE_READING, cache_pb2.STAGE_EXPLAINING
READY, FAILED = cache_pb2.STAGE_READY, cache_pb2.STAGE_FAILED
UNKNOWN = "0b7e2c1a-5d3f-4e6a-9c8b-7a6f5e4d3c2b"

Call = grpc.aio.UnaryStreamCall[
    worker_pb2.WatchGenerationRequest, worker_pb2.WatchGenerationResponse
]
Watch = Callable[..., Call]


@pytest.fixture
async def worker(start_worker: StartWorker) -> AsyncIterator[Running]:
    async with start_worker(concurrency=1) as running:
        yield running


@pytest.fixture
async def watch(cluster: Suite, worker: Running) -> AsyncIterator[Watch]:
    async with grpc.aio.insecure_channel(worker.address) as channel:
        yield watch_on(cluster, channel)


def watch_on(suite: Suite, channel: grpc.aio.Channel) -> Watch:
    def watch(
        generation_id: str,
        *,
        user_id: str = "ada",
        after_sequence: int = 0,
        metadata: grpc.aio.Metadata | None = None,
    ) -> Call:
        request = worker_pb2.WatchGenerationRequest(
            generation_id=generation_id, user_id=user_id, after_sequence=after_sequence
        )
        return WorkerServiceStub(channel).WatchGeneration(
            request, metadata=metadata or suite.bearer(), timeout=60
        )

    return watch


async def ask(suite: Suite, *, user: str = "ada") -> str:
    uploaded = await suite.upload(user, lecture("A tree is a connected graph without cycles."))
    return (await suite.explain(user, uploaded.document.pdf_hash)).generation_id


def stages(updates: list[worker_pb2.WatchGenerationResponse]) -> list[tuple[int, int]]:
    return [(update.sequence, update.stage) for update in updates]


async def reason_of(call: AsyncIterable[worker_pb2.WatchGenerationResponse]) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [update async for update in call]
    error = from_call(caught.value)
    return error.code, error.reason


async def test_a_watcher_sees_a_snapshot_then_every_change_then_the_stickers(
    cluster: Suite, model: FakeOpenAI, watch: Watch
) -> None:
    model.gate.clear()
    generation_id = await ask(cluster)
    await model.wait_for_calls(1)

    updates = aiter(watch(generation_id))
    first = await anext(updates)
    model.gate.set()
    rest = [update async for update in updates]

    assert (first.sequence, first.stage, first.total) == (2, EXPLAINING, 1)
    assert stages(rest) == [(3, READY)]
    assert rest[-1].status == cache_pb2.GENERATION_STATUS_READY
    assert rest[-1].stickers[0].title == "What this page says"


async def test_a_broken_watch_is_resumed_without_loss_or_repetition(
    cluster: Suite, watch: Watch
) -> None:
    generation_id = await ask(cluster)
    _ = [update async for update in watch(generation_id)]

    for seen in (1, 2):
        resumed = [update async for update in watch(generation_id, after_sequence=seen)]
        assert stages(resumed) == [(1, READING), (2, EXPLAINING), (3, READY)][seen:]
        assert resumed[-1].stickers


async def test_an_ended_generation_is_told_at_once_and_never_twice(
    cluster: Suite, watch: Watch
) -> None:
    generation_id = await ask(cluster)
    _ = [update async for update in watch(generation_id)]

    again = [update async for update in watch(generation_id)]
    after_the_end = [update async for update in watch(generation_id, after_sequence=3)]
    beyond = [update async for update in watch(generation_id, after_sequence=99)]

    assert stages(again) == [(3, READY)]
    assert again[0].stickers
    assert after_the_end == []
    # Nobody has been told so much: whoever says so is told how it ended.
    assert [(one.sequence, one.stage, one.snapshot) for one in beyond] == [(3, READY, True)]
    assert beyond[0].stickers


async def test_a_failure_is_told_with_its_reason(
    cluster: Suite, model: FakeOpenAI, watch: Watch
) -> None:
    model.always(fake.refusal())

    updates = [update async for update in watch(await ask(cluster))]

    assert updates[-1].stage == FAILED
    assert updates[-1].error.reason == "CONTENT_REFUSED"
    assert not updates[-1].stickers


async def test_a_retry_is_told_and_the_next_attempt_goes_on_in_the_same_stream(
    cluster: Suite, model: FakeOpenAI, watch: Watch
) -> None:
    answers = iter([fake.error(503), fake.notes()])
    model.answer = lambda request: next(answers)
    model.gate.clear()
    generation_id = await ask(cluster)
    await model.wait_for_calls(1)
    call = watch(generation_id, after_sequence=2)
    model.gate.set()

    updates = [update async for update in call]

    recorded = {update.sequence: update for update in updates}
    assert recorded[3].stage in (cache_pb2.STAGE_RETRYING, cache_pb2.STAGE_QUEUED)
    assert [(recorded[one].stage, recorded[one].attempt) for one in (4, 5, 6)] == [
        (READING, 2),
        (EXPLAINING, 2),
        (READY, 2),
    ]


async def test_an_end_that_no_worker_recorded_reaches_the_watcher(
    cluster: Suite, model: FakeOpenAI, watch: Watch
) -> None:
    model.gate.clear()
    await ask(cluster)  # takes the worker's only credit
    await model.wait_for_calls(1)
    waiting = await ask(cluster)
    stream = aiter(watch(waiting))
    first = await anext(stream)

    await complete_elsewhere(cluster, waiting)
    updates = [update async for update in stream]

    assert (first.sequence, first.stage) == (0, cache_pb2.STAGE_QUEUED)
    assert first.queue_position == 1
    assert (updates[-1].sequence, updates[-1].stage) == (1, READY)
    assert updates[-1].stickers[0].title == "Elsewhere"


async def complete_elsewhere(suite: Suite, generation_id: str) -> None:
    """Another worker takes the job, completes it, and dies before it can record anything."""

    async def one_credit() -> AsyncIterator[jobs_pb2.LeaseJobsRequest]:
        yield jobs_pb2.LeaseJobsRequest(worker_id="elsewhere", credits=1)
        await asyncio.Event().wait()

    metadata = suite.bearer("worker")
    call = suite.jobs.LeaseJobs(one_credit(), metadata=metadata)
    async for response in call:
        assert response.job.lease.generation_id == generation_id
        sticker = cache_pb2.Sticker(
            sticker_id="s1",
            kind=cache_pb2.STICKER_KIND_SUMMARY,
            title="Elsewhere",
            body_markdown="Done.",
        )
        item = jobs_pb2.CompleteJobsRequest.Item(lease=response.job.lease, stickers=[sticker])
        request = jobs_pb2.CompleteJobsRequest(worker_id="elsewhere", items=[item])
        await suite.jobs.CompleteJobs(request, metadata=metadata)
        break
    call.cancel()


async def test_only_who_asked_may_watch(cluster: Suite, watch: Watch) -> None:
    generation_id = await ask(cluster)

    assert await reason_of(watch(generation_id, user_id="eve")) == (
        "NOT_FOUND",
        "GENERATION_NOT_FOUND",
    )
    assert await reason_of(watch(UNKNOWN)) == ("NOT_FOUND", "GENERATION_NOT_FOUND")
    eve = cluster.as_user("eve")
    assert await reason_of(watch(generation_id, metadata=eve)) == (
        "PERMISSION_DENIED",
        "NOT_YOUR_USER",
    )
    ada = [update async for update in watch(generation_id, metadata=cluster.as_user("ada"))]
    assert ada[-1].stage == READY
    admin = cluster.bearer("admin")
    assert [update async for update in watch(generation_id, user_id="", metadata=admin)]


@pytest.mark.parametrize(
    ("generation_id", "user_id", "after_sequence"),
    [("nonsense", "ada", 0), (UNKNOWN, "", 0), (UNKNOWN, "a b", 0), (UNKNOWN, "ada", -1)],
)
async def test_malformed_requests_are_refused(
    watch: Watch, generation_id: str, user_id: str, after_sequence: int
) -> None:
    call = watch(generation_id, user_id=user_id, after_sequence=after_sequence)

    assert await reason_of(call) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")


async def test_watchers_that_go_away_leave_nothing_behind(
    cluster: Suite, model: FakeOpenAI, watch: Watch
) -> None:
    model.gate.clear()
    generation_id = await ask(cluster)
    calls = [watch(generation_id) for _ in range(50)]
    await asyncio.gather(*(call.read() for call in calls))
    assert (gauge(WATCHERS), gauge(FOLLOWED)) == (50, 1)

    for call in calls:
        call.cancel()

    await until(lambda: gauge(WATCHERS) == gauge(FOLLOWED) == 0)


def gauge(metric: Gauge) -> float:
    return next(iter(metric.collect())).samples[0].value


async def test_a_draining_worker_sends_its_watchers_elsewhere(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.gate.clear()
    async with start_worker(concurrency=1, attempt_grace_seconds=0) as first:
        generation_id = await ask(cluster)
        await model.wait_for_calls(1)
        channel = grpc.aio.insecure_channel(first.address)
        stream = aiter(watch_on(cluster, channel)(generation_id))
        seen = await anext(stream)
    assert await reason_of(stream) == ("UNAVAILABLE", "DRAINING")
    await channel.close()

    model.gate.set()
    async with (
        start_worker() as second,
        grpc.aio.insecure_channel(second.address) as other,
    ):
        resumed = watch_on(cluster, other)(generation_id, after_sequence=seen.sequence)
        updates = [update async for update in resumed]

    assert (updates[-1].stage, updates[-1].attempt) == (READY, 2)
    assert [update.sequence for update in updates] == sorted(update.sequence for update in updates)
