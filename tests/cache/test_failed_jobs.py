"""What workers are told about generations they do not hold, and how failed ones start anew."""

import asyncio
from uuid import uuid4

import grpc
import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2

from tests.cache.conftest import House, refused

STARTED = jobs_pb2.REDRIVE_VERDICT_STARTED
ALREADY_LIVE = jobs_pb2.REDRIVE_VERDICT_ALREADY_LIVE
GONE = jobs_pb2.REDRIVE_VERDICT_GONE


async def fail_page(house: House, user: str = "alice") -> tuple[str, str]:
    """A page that failed for good: its document and its generation."""
    pdf_hash = await house.document(user)
    answer = await house.suite.explain(user, pdf_hash)
    await house.worker.fail(await house.worker.lease(), permanent=True)
    return pdf_hash, answer.generation_id


async def failed_jobs(house: House, **fields: object) -> list[jobs_pb2.FailedJob]:
    response = await house.worker.stub.ListFailedJobs(
        jobs_pb2.ListFailedJobsRequest(**fields),  # type: ignore[arg-type]
        metadata=house.worker.bearer,
    )
    return list(response.jobs)


async def redrive(house: House, *generation_ids: str) -> list[jobs_pb2.RedriveJobsResponse.Result]:
    response = await house.worker.stub.RedriveJobs(
        jobs_pb2.RedriveJobsRequest(generation_ids=generation_ids), metadata=house.worker.bearer
    )
    return list(response.results)


async def test_failures_are_told_in_order_with_cause_and_attempts(house: House) -> None:
    pages = [await fail_page(house, user) for user in ("alice", "bob", "carol")]

    told = await failed_jobs(house)

    assert [(job.pdf_hash, job.generation_id) for job in told] == pages
    first = told[0]
    assert (first.error.reason, first.permanent, first.attempts) == ("MODEL_DOWN", True, 1)
    assert [(one.attempt, one.reason) for one in first.failures] == [(1, "MODEL_DOWN")]
    assert first.failed_at.ToDatetime() >= first.created_at.ToDatetime()
    # Page by page, and from a time on.
    rest = await failed_jobs(house, after_generation_id=pages[0][1], page_size=1)
    assert [job.generation_id for job in rest] == [pages[1][1]]
    since = await failed_jobs(house, failed_since=told[2].failed_at)
    assert [job.generation_id for job in since] == [pages[2][1]]


async def test_what_was_taken_out_of_service_has_not_failed(house: House) -> None:
    pdf_hash = await house.document("alice")
    await house.suite.explain("alice", pdf_hash)
    done = await house.suite.cache.InvalidateGenerations(
        cache_pb2.InvalidateGenerationsRequest(pdf_hash=pdf_hash),
        metadata=house.suite.bearer("admin"),
    )

    assert done.failed == 1
    assert await failed_jobs(house) == []


async def test_a_redriven_page_is_made_again_at_nobodys_expense(house: House) -> None:
    pdf_hash, failed = await fail_page(house)
    assert await house.balance("alice") == 1000

    [result] = await redrive(house, failed)

    assert result.verdict == STARTED
    assert result.generation_id != failed
    job = await house.worker.lease()
    assert job.lease.generation_id == result.generation_id
    await house.worker.complete(job)
    assert await house.balance("alice") == 1000
    # The failed one stays what it is; who asks now is served, and pays for that.
    assert (await house.suite.generation(failed)).status == cache_pb2.GENERATION_STATUS_FAILED
    answer = await house.suite.explain("alice", pdf_hash)
    assert (answer.outcome, answer.generation_id) == (
        quota_pb2.OUTCOME_CACHED,
        result.generation_id,
    )
    assert await house.balance("alice") == 999


async def test_who_asks_while_it_is_made_again_joins(house: House) -> None:
    pdf_hash, failed = await fail_page(house)
    [result] = await redrive(house, failed)

    answer = await house.suite.explain("alice", pdf_hash)

    assert (answer.outcome, answer.generation_id) == (
        quota_pb2.OUTCOME_JOINED,
        result.generation_id,
    )


async def test_redriving_twice_or_at_once_starts_one(house: House) -> None:
    _, failed = await fail_page(house)

    results = [
        result
        for results in await asyncio.gather(*(redrive(house, failed) for _ in range(8)))
        for result in results
    ]

    assert sorted(result.verdict for result in results) == [STARTED] + 7 * [ALREADY_LIVE]
    assert len({result.generation_id for result in results}) == 1


async def test_what_is_not_there_or_has_not_failed_is_gone(house: House) -> None:
    await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()

    results = await redrive(house, str(uuid4()), job.lease.generation_id)

    assert [result.verdict for result in results] == [GONE, GONE]


async def test_a_redriven_page_waits_behind_whoever_waits_for_an_answer(house: House) -> None:
    _, failed = await fail_page(house)
    [result] = await redrive(house, failed)
    asked = await house.suite.explain("bob", await house.document("bob"))

    order = [(await house.worker.lease()).lease.generation_id for _ in range(2)]

    assert order == [asked.generation_id, result.generation_id]


async def test_a_redriven_page_is_made_with_the_prompts_of_today(house: House) -> None:
    _, failed = await fail_page(house)
    await house.admin.execute("UPDATE cache.generations SET prompt_version = 'old', model = 'old'")

    await redrive(house, failed)

    job = await house.worker.lease()
    assert "old" not in {job.prompt_version, job.model}


async def test_many_generations_are_told_at_once_each_with_its_place(house: House) -> None:
    asked = [
        (await house.suite.explain(user, await house.document(user))).generation_id
        for user in ("alice", "bob", "carol")
    ]
    ready = await house.worker.lease()
    await house.worker.complete(ready)
    await house.worker.lease()

    response = await house.worker.stub.GetGenerations(
        jobs_pb2.GetGenerationsRequest(generation_ids=[*asked, str(uuid4())]),
        metadata=house.worker.bearer,
    )

    told = {one.generation_id: one for one in response.generations}
    assert set(told) == set(asked)
    for generation_id, one in told.items():
        alone = await house.suite.generation(generation_id)
        del alone.stickers[:]
        for generation in (one, alone):  # it is an estimate
            generation.ClearField("estimated_wait")
        assert one == alone
    assert [told[one].queue_position for one in asked] == [0, 0, 1]


@pytest.mark.parametrize("method", ["GetGenerations", "RedriveJobs"])
@pytest.mark.parametrize("ids", [["x"], [str(uuid4())] * 501], ids=["malformed", "too many"])
async def test_a_bad_list_names_its_field(house: House, method: str, ids: list[str]) -> None:
    request = getattr(jobs_pb2, f"{method}Request")(generation_ids=ids)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await getattr(house.worker.stub, method)(request, metadata=house.worker.bearer)

    assert seen[0].details().startswith("generation_ids")


async def test_only_workers_are_told(house: House) -> None:
    async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
        await house.worker.stub.ListFailedJobs(
            jobs_pb2.ListFailedJobsRequest(), metadata=house.suite.bearer("gateway")
        )
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"):
        await failed_jobs(house, page_size=501)
