"""One attempt, against the real services: every way in which it can end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from glossa.cache.v1 import cache_pb2

from services.runtime.auth import TokenFile
from services.runtime.channel import open_channel
from services.runtime.database import open_database
from services.runtime.errors import DependencyDown
from services.runtime.settings import CONVERSION_VERSION, ExplanationSettings
from services.worker.attempt import Attempts
from services.worker.chunk_store import ChunkStore
from services.worker.clients import Jobs, Quota, Registry
from services.worker.convert import Conversion
from services.worker.deadline import Deadline
from services.worker.delivery import Delivery
from services.worker.domain import (
    DOCUMENT_MARKDOWN,
    Description,
    Explanation,
    Image,
    Job,
    Lease,
    Page,
    Progress,
    Result,
    Stage,
    Sticker,
    StickerKind,
)
from services.worker.generation import Event
from services.worker.image_analysis import ImageAnalysis
from services.worker.image_store import ImageStore
from services.worker.model import Explainer
from services.worker.model_calls import ModelCalls
from services.worker.openai_explainer import open_openai_explainer
from services.worker.operations import Operations
from services.worker.pipeline import Pipeline
from services.worker.store import EventStore
from services.worker.throttle import Pace, Throttle
from tests import fake_openai as fake
from tests.fake_openai import Answer, FakeOpenAI
from tests.suite import Keys, Suite, lecture


@dataclass(kw_only=True)
class Bench:
    """A worker taken apart: the test holds the job and runs the attempt itself."""

    suite: Suite
    attempts: Callable[..., Attempts]
    jobs: Jobs
    events: EventStore

    async def lease(self, *pages: str) -> Job:
        uploaded = await self.suite.upload("ada", lecture(*(pages or ("A tree is a graph.",))))
        await self.suite.explain("ada", uploaded.document.pdf_hash)
        return await self.next_job()

    async def next_job(self) -> Job:
        async def one_credit() -> AsyncIterator[int]:
            yield 1

        async for job in self.jobs.lease_jobs(one_credit()):
            return job
        raise AssertionError("the stream ended without a job")

    async def run(self, job: Job, explainer: Explainer | None = None) -> list[Progress]:
        told: list[Progress] = []
        await self.attempts(explainer).run(job, Deadline(job.time_left), told.append, lambda: None)
        return told

    async def recorded(self, generation_id: UUID) -> list[Event]:
        return await self.events.list_events(generation_id, after_sequence=0)

    async def generation(self, job: Job) -> cache_pb2.Generation:
        return await self.suite.generation(str(job.lease.generation_id))


@pytest.fixture
async def bench(
    cluster: Suite, databases: Mapping[str, str], keys: Keys, explanation: ExplanationSettings
) -> AsyncIterator[Bench]:
    token = TokenFile(keys.token_file("worker"))
    async with (
        open_database(databases["worker"], application_name="test") as database,
        open_channel(cluster.addresses["registry"], token) as registry,
        open_channel(cluster.addresses["cache"], token) as cache,
        open_channel(cluster.addresses["quota"], token) as quota,
        open_openai_explainer(explanation, call_seconds=30) as openai,
    ):
        jobs, events = Jobs(cache, "test"), EventStore(database)
        operations = Operations(Quota(quota).record_operations)

        def attempts(explainer: Explainer | None) -> Attempts:
            pace = Pace(most=8, quota_pause=timedelta(minutes=15))
            calls = ModelCalls(
                explainer=explainer or openai, throttle=Throttle(pace), operations=operations
            )
            images = ImageStore(
                database,
                prompt_version=explanation.prompt_version,
                model=explanation.model_name,
            )
            pages, analysis = Registry(registry), ImageAnalysis(calls=calls, store=images)
            return Attempts(
                pipeline=Pipeline(
                    registry=pages,
                    calls=calls,
                    images=analysis,
                    chunks=ChunkStore(database),
                    prompt_version=explanation.prompt_version,
                ),
                conversion=Conversion(
                    registry=pages, calls=calls, images=analysis, version=CONVERSION_VERSION
                ),
                delivery=Delivery(jobs=jobs, events=events),
                mismatch_hold=timedelta(0),
            )

        yield Bench(suite=cluster, attempts=attempts, jobs=jobs, events=events)


async def test_a_page_is_read_explained_completed_and_recorded(bench: Bench) -> None:
    job = await bench.lease("A tree is a graph.", "The next page.")

    told = await bench.run(job)

    assert [one.stage for one in told] == [Stage.READING, Stage.EXPLAINING]
    events = await bench.recorded(job.lease.generation_id)
    assert [event.stage for event in events] == [Stage.READING, Stage.EXPLAINING, Stage.READY]
    generation = await bench.generation(job)
    assert generation.status == cache_pb2.GENERATION_STATUS_READY
    assert generation.stickers[0].title == "What this page says"


async def test_neighbouring_pages_are_given_as_context(bench: Bench, model: FakeOpenAI) -> None:
    job = await bench.lease("A tree is a graph.", "The next page.")

    await bench.run(job)

    (question,) = model.questions
    assert question.material["context"] == ["The next page."]


async def test_a_long_page_is_explained_in_chunks_and_merged(
    bench: Bench, model: FakeOpenAI
) -> None:
    job = await bench.lease("till ill " * 780)  # narrow letters: 7,000 fit on a page

    told = await bench.run(job)

    parts = [(one.done, one.total) for one in told if one.stage is Stage.EXPLAINING]
    assert parts == [(0, 2), (1, 2)]
    assert model.calls == 2
    assert len((await bench.generation(job)).stickers) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pdf_hash": "0" * 64}, "DOCUMENT_GONE"),
        ({"page": 99}, "PAGE_OUT_OF_RANGE"),
    ],
)
async def test_a_job_that_cannot_be_done_fails_with_its_reason(
    bench: Bench, model: FakeOpenAI, change: dict[str, Any], reason: str
) -> None:
    job = await bench.lease()

    await bench.run(replace(job, **change))

    newest = (await bench.recorded(job.lease.generation_id))[-1]
    assert (newest.error_reason, newest.stage) == (reason, Stage.FAILED)
    assert model.calls == 0


@pytest.mark.parametrize(
    "change",
    [
        {"model": "another"},
        {"prompt_version": "another"},
        {"kind": "poem"},
        {"kind": DOCUMENT_MARKDOWN, "prompt_version": "another"},
    ],
)
async def test_a_job_for_another_worker_is_given_back_and_keeps_its_attempts(
    bench: Bench, model: FakeOpenAI, change: dict[str, Any]
) -> None:
    job = await bench.lease()
    for _ in range(5):  # more often than there are attempts
        await bench.run(replace(job, **change))
        job = await bench.next_job()

    # Nobody who watches hears of it, however often.
    assert await bench.recorded(job.lease.generation_id) == []
    assert model.calls == 0
    await bench.run(job)
    assert (await bench.generation(job)).status == cache_pb2.GENERATION_STATUS_READY


@pytest.mark.parametrize(
    ("answer", "reason", "ends"),
    [
        (fake.error(429), "MODEL_RATE_LIMITED", False),
        (fake.error(503), "MODEL_UNAVAILABLE", False),
        (fake.truncated(), "MODEL_TRUNCATED", False),
        (fake.refusal(), "CONTENT_REFUSED", True),
        (fake.ok(fake.response("[]")), "MODEL_BAD_OUTPUT", True),
    ],
)
async def test_only_transient_model_failures_are_tried_again(
    bench: Bench, model: FakeOpenAI, answer: Answer, reason: str, ends: bool
) -> None:
    model.always(answer)
    job = await bench.lease()

    await bench.run(job)

    newest = (await bench.recorded(job.lease.generation_id))[-1]
    assert (newest.error_reason, newest.ends) == (reason, ends)
    generation = await bench.generation(job)
    assert (generation.status == cache_pb2.GENERATION_STATUS_FAILED) is ends


async def test_an_attempt_ends_at_its_deadline_though_the_model_never_answers(
    bench: Bench, model: FakeOpenAI
) -> None:
    model.always(Answer(hang=True))
    job = await bench.lease()

    await bench.run(replace(job, time_left=timedelta(seconds=0.3)))

    newest = (await bench.recorded(job.lease.generation_id))[-1]
    assert (newest.error_reason, newest.stage) == ("ATTEMPT_TIMEOUT", Stage.RETRYING)


class CrashingExplainer:
    """The outside world at its worst."""

    kind = "openai"
    sees = True

    def __init__(self, model: str) -> None:
        self.model = model

    async def describe(self, image: Image) -> Description:
        raise RuntimeError("secret internals")

    async def explain(self, page: Page) -> Explanation:
        raise RuntimeError("secret internals")


async def test_an_unknown_crash_is_transient_and_keeps_its_internals(bench: Bench) -> None:
    job = await bench.lease()

    await bench.run(job, CrashingExplainer(job.model))

    newest = (await bench.recorded(job.lease.generation_id))[-1]
    assert (newest.error_reason, newest.stage) == ("INTERNAL_ERROR", Stage.RETRYING)
    assert "secret" not in newest.error_message


async def test_a_late_attempt_records_no_end(bench: Bench) -> None:
    job = await bench.lease()
    late = replace(job, lease=replace(job.lease, attempt=7))

    await bench.run(late)

    assert not any(event.ends for event in await bench.recorded(job.lease.generation_id))
    generation = await bench.generation(job)
    assert generation.status == cache_pb2.GENERATION_STATUS_GENERATING


async def test_a_result_the_cache_refuses_does_not_fail_its_neighbours(bench: Bench) -> None:
    delivery = Delivery(jobs=bench.jobs, events=bench.events)
    job = await bench.lease()
    tree = Sticker(sticker_id="s1", kind=StickerKind.TERM, title="Tree", body_markdown="A graph.")
    good = Result(stickers=(tree,))
    bad = Result(stickers=(replace(tree, title=""), tree))

    results = await asyncio.gather(
        delivery.complete(replace(job.lease, attempt=5), good),
        delivery.complete(replace(job.lease, attempt=6), bad),
        delivery.complete(job.lease, good),
    )

    assert tuple(results) == ("lease_lost", "lease_lost", "ready")


async def test_a_job_is_given_back_though_the_cache_was_away_for_a_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await bench.lease()
    release_jobs, failures = bench.jobs.release_jobs, [DependencyDown("away")]

    async def fail_first(leases: Sequence[Lease]) -> None:
        if failures:
            raise failures.pop()
        await release_jobs(leases)

    monkeypatch.setattr(bench.jobs, "release_jobs", fail_first)

    assert (
        await Delivery(jobs=bench.jobs, events=bench.events).give_back(job.lease, had_begun=True)
        == "given_back"
    )
    assert (await bench.generation(job)).stage == cache_pb2.STAGE_QUEUED


async def test_a_job_the_cache_does_not_take_back_is_undelivered(bench: Bench) -> None:
    lease = Lease(generation_id=uuid4(), attempt=-1)

    delivery = Delivery(jobs=bench.jobs, events=bench.events)

    assert await delivery.give_back(lease, had_begun=True) == "undelivered"
