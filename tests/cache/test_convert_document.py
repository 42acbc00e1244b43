"""Documents as Markdown: another kind of generation, made once and billed the same way."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import grpc
import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2

from tests.cache.conftest import House, refused

MARKDOWN = "<!-- page 1 -->\n\n# Entropy\n\nA measure of disorder."


async def convert(
    house: House, user: str, pdf_hash: str, request_id: str = ""
) -> cache_pb2.ConvertDocumentResponse:
    request = cache_pb2.ConvertDocumentRequest(
        user_id=user, pdf_hash=pdf_hash, request_id=request_id
    )
    return await house.suite.cache.ConvertDocument(request, metadata=house.suite.bearer())


async def complete(house: House, item: jobs_pb2.CompleteJobsRequest.Item) -> None:
    request = jobs_pb2.CompleteJobsRequest(worker_id="worker-1", items=[item])
    response = await house.suite.jobs.CompleteJobs(request, metadata=house.suite.bearer("worker"))
    assert list(response.verdicts) == [jobs_pb2.JOB_VERDICT_ACCEPTED]


async def test_a_document_is_converted_once_for_everyone(house: House) -> None:
    users = [f"user-{n}" for n in range(20)]
    pdf_hash = await house.document(*users)

    cold = await asyncio.gather(*(convert(house, user, pdf_hash) for user in users))
    job = await house.worker.lease()
    await complete(house, jobs_pb2.CompleteJobsRequest.Item(lease=job.lease, markdown=MARKDOWN))
    warm = await asyncio.gather(*(convert(house, user, pdf_hash) for user in users))

    assert {answer.generation_id for answer in (*cold, *warm)} == {job.lease.generation_id}
    assert (job.kind, job.pdf_hash, job.page) == ("document_markdown", pdf_hash, 1)
    started = [answer for answer in cold if answer.outcome == quota_pb2.OUTCOME_GENERATED]
    assert [answer.receipt.units for answer in started] == [1]
    assert {answer.markdown for answer in warm} == {MARKDOWN}
    assert {answer.outcome for answer in warm} == {quota_pb2.OUTCOME_CACHED}
    await house.assert_sound()


async def test_the_ledger_says_what_was_bought(house: House) -> None:
    pdf_hash = await house.document("alice")

    answer = await convert(house, "alice", pdf_hash)

    charge = await house.admin.fetchrow(
        "SELECT endpoint, outcome, quota_units FROM quota.explain_requests WHERE request_id = $1",
        answer.request_id,
    )
    assert charge is not None
    assert tuple(charge) == ("convert_document", "generated", 1)
    told = await house.suite.quota.ListLedger(
        quota_pb2.ListLedgerRequest(user_id="alice"), metadata=house.suite.bearer("admin")
    )
    assert told.entries[0].explanation == "A document was converted for you."


async def test_the_first_page_and_the_document_are_two_things(house: House) -> None:
    pdf_hash = await house.document("alice")

    page = await house.suite.explain("alice", pdf_hash)
    document = await convert(house, "alice", pdf_hash)

    assert page.generation_id != document.generation_id
    kinds = {(await house.worker.lease()).kind for _ in range(2)}
    assert kinds == {"page_explanation", "document_markdown"}


@pytest.mark.parametrize("page_first", [True, False])
async def test_a_request_id_means_one_kind(house: House, page_first: bool) -> None:
    pdf_hash = await house.document("alice")
    request_id = str(uuid4())
    asks: list[Callable[[], Awaitable[Any]]] = [
        lambda: house.suite.explain("alice", pdf_hash, request_id=request_id),
        lambda: convert(house, "alice", pdf_hash, request_id),
    ]
    first, second = asks if page_first else reversed(asks)
    await first()

    async with refused(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED"):
        await second()

    again = await first()
    assert again.outcome == quota_pb2.OUTCOME_REPLAYED


async def test_the_generation_shows_the_markdown(house: House) -> None:
    answer = await convert(house, "alice", await house.document("alice"))
    job = await house.worker.lease()
    await complete(house, jobs_pb2.CompleteJobsRequest.Item(lease=job.lease, markdown=MARKDOWN))

    generation = await house.suite.generation(answer.generation_id)

    assert (generation.kind, generation.markdown) == ("document_markdown", MARKDOWN)
    assert not generation.stickers


async def test_a_failed_conversion_is_given_back(house: House) -> None:
    answer = await convert(house, "alice", await house.document("alice"))
    await house.worker.fail(await house.worker.lease(), permanent=True)

    assert answer.receipt.remaining_units == 999
    assert await house.balance("alice") == 1000
    await house.assert_sound()


async def test_who_does_not_hold_the_document_gets_nothing(house: House) -> None:
    pdf_hash = await house.document("alice")

    async with refused(grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND"):
        await convert(house, "mallory", pdf_hash)


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (jobs_pb2.CompleteJobsRequest.Item(markdown="x" * (3 << 20) + "y"), "items[0].markdown"),
        (jobs_pb2.CompleteJobsRequest.Item(markdown="x\0y"), "items[0].markdown"),
        (
            jobs_pb2.CompleteJobsRequest.Item(
                markdown="x",
                stickers=[
                    cache_pb2.Sticker(
                        sticker_id="s1",
                        kind=cache_pb2.STICKER_KIND_TERM,
                        title="t",
                        body_markdown="b",
                    )
                ],
            ),
            "items[0].markdown",
        ),
    ],
    ids=["too large", "NUL", "two results"],
)
async def test_a_result_that_cannot_be_served_is_refused(
    house: House, item: jobs_pb2.CompleteJobsRequest.Item, field: str
) -> None:
    await convert(house, "alice", await house.document("alice"))
    job = await house.worker.lease()
    item.lease.CopyFrom(job.lease)

    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await complete(house, item)

    assert field in seen[0].details()


async def test_a_worker_that_makes_something_else_is_not_believed(house: House) -> None:
    """One from before documents were converted explains their first page instead."""
    pdf_hash = await house.document("alice")
    document = await convert(house, "alice", pdf_hash)
    page = await house.suite.explain("alice", pdf_hash)
    jobs = {job.kind: job for job in [await house.worker.lease() for _ in range(2)]}

    explained = await house.worker.complete(jobs["document_markdown"])
    item = jobs_pb2.CompleteJobsRequest.Item(
        lease=jobs["page_explanation"].lease, markdown=MARKDOWN
    )
    converted = await house.suite.jobs.CompleteJobs(
        jobs_pb2.CompleteJobsRequest(worker_id="worker-1", items=[item]),
        metadata=house.suite.bearer("worker"),
    )

    assert [explained, *converted.verdicts] == 2 * [jobs_pb2.JOB_VERDICT_LEASE_LOST]
    for generation_id in (document.generation_id, page.generation_id):
        generation = await house.suite.generation(generation_id)
        assert generation.status == cache_pb2.GENERATION_STATUS_GENERATING


async def test_a_document_is_started_anew_as_it_is_made_today(house: House) -> None:
    pdf_hash = await house.document("alice")
    answer = await convert(house, "alice", pdf_hash)
    await house.worker.fail(await house.worker.lease(), permanent=True)
    await house.admin.execute(
        "UPDATE cache.generations SET prompt_version = 'markdown-0', model = 'old'"
    )

    await house.suite.jobs.RedriveJobs(
        jobs_pb2.RedriveJobsRequest(generation_ids=[answer.generation_id]),
        metadata=house.suite.bearer("worker"),
    )
    job = await house.worker.lease()
    asked = await convert(house, "alice", pdf_hash)

    assert (job.kind, job.prompt_version) == ("document_markdown", "markdown-1")
    assert asked.generation_id == job.lease.generation_id


async def test_what_an_admin_took_away_is_not_started_anew(house: House) -> None:
    pdf_hash = await house.document("alice")
    answer = await convert(house, "alice", pdf_hash)
    await house.suite.cache.InvalidateGenerations(
        cache_pb2.InvalidateGenerationsRequest(pdf_hash=pdf_hash, reason="BAD_PROMPT"),
        metadata=house.suite.bearer("admin"),
    )
    worker = house.suite.bearer("worker")

    listed = await house.suite.jobs.ListFailedJobs(
        jobs_pb2.ListFailedJobsRequest(), metadata=worker
    )
    await house.suite.jobs.RedriveJobs(
        jobs_pb2.RedriveJobsRequest(generation_ids=[answer.generation_id]), metadata=worker
    )

    assert not listed.jobs
    live = "SELECT count(*) FROM cache.generations WHERE status = 'generating'"
    assert await house.admin.fetchval(live) == 0


async def test_however_long_somebody_has_waited_the_result_is_taken(house: House) -> None:
    await convert(house, "alice", await house.document("alice"))
    job = await house.worker.lease()
    await house.admin.execute("UPDATE cache.requests SET created_at = now() - interval '40 days'")

    await complete(house, jobs_pb2.CompleteJobsRequest.Item(lease=job.lease, markdown=MARKDOWN))


async def test_the_story_of_a_request_tells_its_kind(house: House) -> None:
    answer = await convert(house, "alice", await house.document("alice"))

    story = await house.suite.cache.DescribeRequest(
        cache_pb2.DescribeRequestRequest(request_id=answer.request_id, user_id="alice"),
        metadata=house.suite.bearer(),
    )

    assert story.kind == "document_markdown"
