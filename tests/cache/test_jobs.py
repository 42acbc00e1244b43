"""Leases: pushed at once, fenced by their attempt, never lost, never observed twice."""

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2
from google.protobuf.duration_pb2 import Duration

from services.cache.config import Config
from services.cache.job_domain import Failure, Lease, Verdict
from services.cache.queue_store import QueueStore
from services.runtime.database import open_database
from tests.cache.conftest import House, Worker, open_house, refused
from tests.suite import Keys


async def test_a_waiting_worker_is_handed_new_work(house: House) -> None:
    pdf_hash = await house.document("alice")
    waiting = asyncio.create_task(house.worker.lease())

    answer = await house.suite.explain("alice", pdf_hash)
    job = await waiting

    assert job.lease.generation_id == answer.generation_id
    assert (job.lease.attempt, job.pdf_hash, job.page, job.locale) == (1, pdf_hash, 1, "en")
    assert 70 <= job.time_left.ToTimedelta().total_seconds() <= 75


async def test_many_workers_never_share_a_job(house: House) -> None:
    documents = [await house.document("alice") for _ in range(10)]
    for pdf_hash in documents:
        await house.suite.explain("alice", pdf_hash)

    workers = [Worker(house.suite, f"worker-{n}") for n in range(10)]
    jobs = await asyncio.gather(*(worker.lease() for worker in workers))

    assert len({job.lease.generation_id for job in jobs}) == 10


async def test_no_more_jobs_come_than_were_asked_for(house: House) -> None:
    for _ in range(3):
        await house.suite.explain("alice", await house.document("alice"))

    async with house.worker.leasing(credits_=2) as stream:
        await stream.read()
        await stream.read()
        leased = "SELECT count(*) FROM cache.generations WHERE leased_by IS NOT NULL"
        assert await house.admin.fetchval(leased) == 2
        await stream.write(jobs_pb2.LeaseJobsRequest(worker_id="worker-1", credits=1))
        await stream.read()
        assert await house.admin.fetchval(leased) == 3


async def test_progress_is_seen_by_readers(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()

    assert await house.worker.renew(job) == [answer.generation_id]

    generation = await house.suite.generation(answer.generation_id)
    assert generation.stage == cache_pb2.STAGE_EXPLAINING
    assert (generation.done, generation.total, generation.queue_position) == (1, 3, 0)


async def test_a_late_worker_cannot_renew_complete_or_fail_a_lost_lease(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    async with open_house(admin_url, databases, keys, tmp_path, lease_seconds=0.2) as house:
        answer = await house.suite.explain("alice", await house.document("alice"))
        late, prompt = house.worker, Worker(house.suite, "worker-2")
        stale = await late.lease()
        fresh = await prompt.lease()  # comes when the first lease has run out

        assert (stale.lease.attempt, fresh.lease.attempt) == (1, 2)
        assert await late.renew(stale) == []
        assert await late.complete(stale, "Stale") == jobs_pb2.JOB_VERDICT_LEASE_LOST
        assert await late.fail(stale, permanent=True) == jobs_pb2.JOB_VERDICT_LEASE_LOST
        assert await prompt.complete(fresh, "Fresh") == jobs_pb2.JOB_VERDICT_ACCEPTED
        assert await prompt.complete(fresh, "Twice") == jobs_pb2.JOB_VERDICT_LEASE_LOST

        generation = await house.suite.generation(answer.generation_id)
        assert [sticker.title for sticker in generation.stickers] == ["Fresh"]
        assert await house.balance("alice") == 999


async def test_a_permanent_failure_refunds_everyone_who_paid(house: House) -> None:
    pdf_hash = await house.document("alice", "bob")
    first = await house.suite.explain("alice", pdf_hash)
    await house.suite.explain("bob", pdf_hash)

    verdict = await house.worker.fail(await house.worker.lease(), permanent=True)

    assert verdict == jobs_pb2.JOB_VERDICT_ACCEPTED
    assert [await house.balance(user) for user in ("alice", "bob")] == [1000, 1000]
    generation = await house.suite.generation(first.generation_id)
    assert generation.status == cache_pb2.GENERATION_STATUS_FAILED
    assert generation.error.reason == "MODEL_DOWN"


async def test_a_refunded_request_asked_again_tells_of_the_failure(house: House) -> None:
    pdf_hash = await house.document("alice")
    request_id = "00000000-0000-4000-8000-000000000001"
    await house.suite.explain("alice", pdf_hash, request_id=request_id)
    await house.worker.fail(await house.worker.lease(), permanent=True)
    assert await house.balance("alice") == 1000

    again = await house.suite.explain("alice", pdf_hash, request_id=request_id)

    assert again.outcome == quota_pb2.OUTCOME_REPLAYED
    assert again.status == cache_pb2.GENERATION_STATUS_FAILED
    assert (again.error.reason, again.receipt.units) == ("MODEL_DOWN", 0)


async def test_a_transient_failure_is_tried_again_and_charged_once(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))

    verdict = await house.worker.fail(await house.worker.lease(), permanent=False)
    retry = await house.worker.lease()
    await house.worker.complete(retry)

    assert verdict == jobs_pb2.JOB_VERDICT_RETRYING
    assert retry.lease.attempt == 2
    generation = await house.suite.generation(answer.generation_id)
    assert generation.status == cache_pb2.GENERATION_STATUS_READY
    assert await house.balance("alice") == 999


async def test_the_third_failure_is_the_last(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))

    verdicts = [
        await house.worker.fail(await house.worker.lease(), permanent=False) for _ in range(3)
    ]

    retrying, ended = jobs_pb2.JOB_VERDICT_RETRYING, jobs_pb2.JOB_VERDICT_ACCEPTED
    assert verdicts == [retrying, retrying, ended]
    generation = await house.suite.generation(answer.generation_id)
    assert generation.status == cache_pb2.GENERATION_STATUS_FAILED
    assert await house.balance("alice") == 1000


async def test_the_sweep_ends_what_workers_left_behind_and_refunds_it(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    quick = {"lease_seconds": 0.1, "sweep_seconds": 0.1, "max_attempts": 1}
    async with open_house(admin_url, databases, keys, tmp_path, **quick) as house:
        answer = await house.suite.explain("alice", await house.document("alice"))
        await house.worker.lease()  # and never heard of again

        await house.until("SELECT status = 'failed' FROM cache.generations")

        generation = await house.suite.generation(answer.generation_id)
        assert generation.error.reason == "ATTEMPTS_SPENT"
        assert await house.balance("alice") == 1000


async def test_a_job_that_nobody_takes_up_is_refunded(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    quick = {"queue_wait_seconds": 0.1, "sweep_seconds": 0.1}
    async with open_house(admin_url, databases, keys, tmp_path, **quick) as house:
        answer = await house.suite.explain("alice", await house.document("alice"))

        await house.until("SELECT status = 'failed' FROM cache.generations")

        generation = await house.suite.generation(answer.generation_id)
        assert generation.error.reason == "QUEUE_TIMEOUT"
        assert await house.balance("alice") == 1000


async def test_only_workers_may_take_jobs(house: House) -> None:
    for scope in ("gateway", "admin", "cache"):
        async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
            await house.suite.jobs.RenewLeases(
                jobs_pb2.RenewLeasesRequest(worker_id="x"), metadata=house.suite.bearer(scope)
            )


async def test_a_bad_message_ends_the_lease_stream_with_its_reason(house: House) -> None:
    async with (
        refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
        house.worker.leasing(credits_=1000) as stream,
    ):
        await stream.read()


@pytest.mark.parametrize(
    ("sticker", "field"),
    [
        (cache_pb2.Sticker(), "kind"),
        (cache_pb2.Sticker(kind=cache_pb2.STICKER_KIND_TERM), "sticker_id"),
        (cache_pb2.Sticker(kind=cache_pb2.STICKER_KIND_TERM, sticker_id="a\0"), "sticker_id"),
        (cache_pb2.Sticker(sticker_id="s1", kind=cache_pb2.STICKER_KIND_TERM), "title"),
        (
            cache_pb2.Sticker(
                sticker_id="s1",
                kind=cache_pb2.STICKER_KIND_TERM,
                title="a\0b",
                body_markdown="c",
            ),
            "title",
        ),
    ],
)
async def test_a_result_that_breaks_the_schema_is_refused(
    house: House, sticker: cache_pb2.Sticker, field: str
) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()
    item = jobs_pb2.CompleteJobsRequest.Item(lease=job.lease, stickers=[sticker])
    request = jobs_pb2.CompleteJobsRequest(worker_id="worker-1", items=[item])

    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await house.suite.jobs.CompleteJobs(request, metadata=house.suite.bearer("worker"))

    assert f"items[0].stickers[0].{field}" in seen[0].details()
    generation = await house.suite.generation(answer.generation_id)
    assert generation.status == cache_pb2.GENERATION_STATUS_GENERATING


async def test_a_repeated_report_of_a_failure_changes_nothing(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()

    first = await house.worker.fail(job, permanent=False)
    again = await house.worker.fail(job, permanent=True)
    late = await house.worker.complete(job)

    assert first == jobs_pb2.JOB_VERDICT_RETRYING
    assert again == late == jobs_pb2.JOB_VERDICT_LEASE_LOST
    generation = await house.suite.generation(answer.generation_id)
    assert generation.status == cache_pb2.GENERATION_STATUS_GENERATING


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reason": ""}, "reason"),
        ({"reason": "A\0B"}, "reason"),
        ({"message": "no\0answer"}, "message"),
        ({"retry_after": Duration(seconds=2**40)}, "retry_after"),
        ({"retry_after": Duration(seconds=-1)}, "retry_after"),
    ],
)
async def test_a_malformed_failure_names_its_field(
    house: House, change: dict[str, Any], field: str
) -> None:
    await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()
    item = jobs_pb2.FailJobsRequest.Item(**{"lease": job.lease, "reason": "X", **change})

    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await house.suite.jobs.FailJobs(
            jobs_pb2.FailJobsRequest(worker_id="worker-1", items=[item]),
            metadata=house.suite.bearer("worker"),
        )

    assert f"items[0].{field}" in seen[0].details()


async def test_who_joins_while_it_ends_is_neither_stranded_nor_charged_for_nothing(
    house: House,
) -> None:
    users = [f"student-{n}" for n in range(30)]
    for permanent_failure in (False, True):
        pdf_hash = await house.document(*users)
        await house.suite.explain(users[0], pdf_hash)
        job = await house.worker.lease()
        ending = house.worker.fail(job, permanent=True) if permanent_failure else None

        await asyncio.gather(
            *(house.suite.explain(user, pdf_hash) for user in users[1:15]),
            ending or house.worker.complete(job),
            *(house.suite.explain(user, pdf_hash) for user in users[15:]),
        )
    # The house checks at the end that nobody waits for what has ended and that the ledger is right.


async def test_the_sweep_leaves_a_lease_that_was_renewed_since_it_looked(
    house: House, databases: Mapping[str, str]
) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()
    lease = Lease(generation_id=UUID(answer.generation_id), attempt=job.lease.attempt)
    failure = Failure(lease=lease, reason="ATTEMPTS_SPENT", message="", permanent=True)

    async with open_database(databases["cache"], application_name="test") as database:
        store = QueueStore(database, Config.model_construct().clocks())
        verdict = await store.end_abandoned_job(failure)

    assert verdict is Verdict.LEASE_LOST
    assert await house.worker.complete(job) == jobs_pb2.JOB_VERDICT_ACCEPTED


async def test_who_lost_the_race_and_then_the_generation_is_owed_a_refund(house: House) -> None:
    """Its price was put right by Quota, so the Cache cannot know that there is nothing to give."""
    pdf_hash = await house.document("alice", "bob")
    answer = await house.suite.explain("alice", pdf_hash)
    await house.suite.explain("bob", pdf_hash)
    await house.admin.execute("UPDATE cache.requests SET units = NULL WHERE user_id = 'bob'")

    await house.worker.fail(await house.worker.lease(), permanent=True)
    await house.until("SELECT count(*) = 0 FROM cache.outbox")

    refunded = await house.admin.fetch(
        "SELECT user_id FROM quota.explain_requests WHERE status = 'refunded' ORDER BY user_id"
    )
    assert [row["user_id"] for row in refunded] == ["alice", "bob"]
    generation = await house.suite.generation(answer.generation_id)
    assert generation.status == cache_pb2.GENERATION_STATUS_FAILED


async def test_a_result_kept_as_json_is_still_read(house: House) -> None:
    """As results were kept before migration 0009."""
    pdf_hash = await house.document("alice", "bob")
    answer = await house.suite.explain("alice", pdf_hash)
    await house.worker.complete(await house.worker.lease())
    kept = {
        "sticker_id": "s1",
        "kind": "term",
        "title": "Kept",
        "body_markdown": "As it was.",
        "quote": "kept",
        "box": [0.25, 0.25, 0.5, 0.75],
    }
    as_json = "UPDATE cache.generations SET result = NULL, stickers = $2::text::jsonb"
    await house.admin.execute(
        f"{as_json} WHERE generation_id = $1", UUID(answer.generation_id), json.dumps([kept])
    )

    [read] = (await house.suite.generation(answer.generation_id)).stickers
    [served] = (await house.suite.explain("bob", pdf_hash)).stickers

    assert read == served
    assert (read.title, read.anchor.quote, read.anchor.box.bottom) == ("Kept", "kept", 0.75)
    assert read.kind == cache_pb2.STICKER_KIND_TERM


async def test_jobs_of_one_batch_that_differ_are_told_apart(house: House) -> None:
    """They are copied from a pattern: what differs must not be copied along."""
    one, other = await house.document("alice"), await house.document("alice")
    await house.suite.explain("alice", one)
    await house.suite.explain("alice", one, locale="zh-Hans")
    await house.suite.explain("alice", other)
    await house.suite.cache.ConvertDocument(
        cache_pb2.ConvertDocumentRequest(user_id="alice", pdf_hash=one),
        metadata=house.suite.bearer(),
    )
    # So many that both get the longest deadline there is.
    with_images = "UPDATE cache.generations SET images_count = $2 WHERE pdf_hash = $1"
    await house.admin.execute(with_images, one, 10)
    await house.admin.execute(with_images, other, 20)

    stream = house.suite.jobs.LeaseJobs(metadata=house.worker.bearer)
    await stream.write(jobs_pb2.LeaseJobsRequest(worker_id="w", credits=10, batched=True))
    response = await stream.read()
    stream.cancel()

    assert isinstance(response, jobs_pb2.LeaseJobsResponse)
    kept = {
        str(row["generation_id"]): row
        for row in await house.admin.fetch("SELECT * FROM cache.generations")
    }
    assert {job.lease.generation_id for job in response.jobs} == set(kept)
    for job in response.jobs:
        row = kept[job.lease.generation_id]
        for name in ("kind", "pdf_hash", "page", "locale", "model", "scope", "prompt_version"):
            assert getattr(job, name) == row[name]
        for name in ("created_at", "leased_until", "deadline_at"):
            assert getattr(job, name).ToDatetime(tzinfo=UTC) == row[name]
        assert job.images_count == row["images_count"] == (20 if job.pdf_hash == other else 10)
        assert job.time_left.ToTimedelta() == row["deadline_at"] - row["started_at"]
