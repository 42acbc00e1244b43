"""DescribeRequest: the whole story of a request, to its user and to admins."""

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID, uuid4

import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from glossa.quota.v1.quota_pb2 import UpdatePreferencesRequest

from tests.cache.conftest import House, open_house, refused
from tests.cache.leases import fail, opened, row, sweep
from tests.suite import Keys

STATE = cache_pb2.RequestState


async def describe(
    house: House, request_id: str, user: str = "alice", *, scope: str = "gateway"
) -> cache_pb2.DescribeRequestResponse:
    request = cache_pb2.DescribeRequestRequest(request_id=request_id, user_id=user)
    return await house.suite.cache.DescribeRequest(request, metadata=house.suite.bearer(scope))


def told(story: cache_pb2.DescribeRequestResponse, words: str) -> bool:
    return any(words in sentence for sentence in story.story)


async def test_a_request_that_waits(house: House) -> None:
    pdf_hash = await house.document("alice")
    answer = await house.suite.explain("alice", pdf_hash)

    story = await describe(house, answer.request_id)

    waits = await row(house, answer.generation_id)
    assert (story.request_id, story.user_id) == (answer.request_id, "alice")
    assert (story.pdf_hash, story.page, story.locale) == (pdf_hash, 1, "en")
    assert (story.state, story.outcome) == (
        STATE.REQUEST_STATE_WAITING,
        quota_pb2.OUTCOME_GENERATED,
    )
    assert (story.units, story.private, story.refund_due) == (1, False, False)
    assert story.generation.generation_id == answer.generation_id
    assert (story.generation.queue_position, story.clocks.attempts_left) == (1, 3)
    assert story.clocks.run_after.ToDatetime(tzinfo=waits["run_after"].tzinfo) == waits["run_after"]
    waiting_time = story.clocks.queue_deadline_at.ToSeconds() - story.clocks.run_after.ToSeconds()
    assert waiting_time == 3600
    assert not story.clocks.HasField("leased_until")
    assert told(story, "this request started it")
    assert told(story, "place 1 of the queue")


async def test_a_request_a_worker_is_at(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()

    story = await describe(house, answer.request_id)

    assert story.clocks.leased_until == job.leased_until
    assert story.clocks.deadline_at == job.deadline_at
    assert not story.clocks.HasField("queue_deadline_at")
    assert (story.clocks.attempts_left, story.generation.queue_position) == (2, 0)
    assert told(story, "A worker is at attempt 1")


async def test_a_request_that_was_served(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    await house.worker.complete(await house.worker.lease())

    story = await describe(house, answer.request_id)

    assert story.state == STATE.REQUEST_STATE_SERVED
    assert story.generation.status == cache_pb2.GENERATION_STATUS_READY
    assert (story.units, list(story.failures)) == (1, [])
    assert story.clocks == cache_pb2.GenerationClocks()
    assert story.updated_at.ToNanoseconds() > story.created_at.ToNanoseconds()
    assert told(story, "It has been served.")


async def test_a_request_that_joined(house: House) -> None:
    pdf_hash = await house.document("alice", "bob")
    first = await house.suite.explain("alice", pdf_hash)
    second = await house.suite.explain("bob", pdf_hash)

    story = await describe(house, second.request_id, "bob")

    assert (story.outcome, story.units) == (quota_pb2.OUTCOME_JOINED, 0)
    assert story.generation.generation_id == first.generation_id
    assert told(story, "somebody else, and this request joined")


async def test_a_request_whose_attempts_fail(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    backoff = {"backoff_seconds": (0, 300)}
    async with open_house(admin_url, databases, keys, tmp_path, **backoff) as house:
        answer = await house.suite.explain("alice", await house.document("alice"))
        for reason in ("MODEL_DOWN", "MODEL_RATE_LIMITED"):
            await fail(house.worker, await house.worker.lease(), reason=reason)

        story = await describe(house, answer.request_id)

    failures = [(one.attempt, one.reason, one.message) for one in story.failures]
    assert failures == [(1, "MODEL_DOWN", "no answer"), (2, "MODEL_RATE_LIMITED", "no answer")]
    assert story.state == STATE.REQUEST_STATE_WAITING
    assert story.generation.stage == cache_pb2.STAGE_RETRYING
    assert story.clocks.attempts_left == 1
    last = story.failures[1].failed_at.ToSeconds()
    assert story.clocks.run_after.ToSeconds() - last in range(299, 302)
    assert told(story, "Attempt 1 failed: MODEL_DOWN (no answer).")


async def test_attempts_that_were_given_back_are_not_counted(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()
    await house.admin.execute(
        "UPDATE cache.generations SET released = 1, leased_by = NULL, leased_until = NULL,"
        " deadline_at = NULL WHERE generation_id = $1",
        job.lease.generation_id,
    )

    story = await describe(house, answer.request_id)

    assert (story.generation.attempts, story.clocks.attempts_left) == (1, 3)


async def test_a_request_that_failed_and_its_refund(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()
    async with house.admin.transaction():
        # Nobody can settle while Quota's accounts are locked: the refund stays on its way.
        await house.admin.execute("LOCK quota.accounts IN ACCESS EXCLUSIVE MODE")
        await fail(house.worker, job, reason="PDF_UNREADABLE", permanent=True)
        due = await describe(house, answer.request_id)
    assert await house.balance("alice") == 1000
    story = await describe(house, answer.request_id)

    assert (due.state, due.refund_due) == (STATE.REQUEST_STATE_FAILED, True)
    assert told(due, "on its way to Quota")
    assert (story.state, story.refund_due) == (STATE.REQUEST_STATE_FAILED, False)
    assert (due.units, story.units) == (1, 0)
    assert told(story, "What was charged has been given back.")
    assert [one.reason for one in story.failures] == ["PDF_UNREADABLE"]
    assert story.generation.error.reason == "PDF_UNREADABLE"
    assert story.clocks == cache_pb2.GenerationClocks()
    assert told(story, "The reason: PDF_UNREADABLE (no answer).")


async def test_a_request_that_was_given_up(house: House, databases: Mapping[str, str]) -> None:
    request_id = str(uuid4())
    await house.admin.execute(
        "INSERT INTO cache.requests (request_id, user_id, pdf_hash, page, locale, nonce, outcome,"
        " held_until, updated_at) VALUES ($1, 'alice', repeat('0', 64), 7, 'zh-Hans',"
        " gen_random_uuid(), 'generated', now(), now() - interval '2 minutes')",
        request_id,
    )
    before = await describe(house, request_id)
    async with opened(databases) as database:
        await sweep(house, database)

    story = await describe(house, request_id)

    assert before.state == STATE.REQUEST_STATE_INTENT
    assert (story.state, story.units) == (STATE.REQUEST_STATE_ABORTED, 0)
    assert (story.page, story.locale) == (7, "zh-Hans")
    assert not story.HasField("generation")
    assert not story.HasField("clocks")
    assert told(story, "It was given up before it bought anything")


async def test_a_request_of_somebody_who_does_not_share(house: House) -> None:
    await house.suite.quota.UpdatePreferences(
        UpdatePreferencesRequest(user_id="alice", share_to_cache=False),
        metadata=house.suite.bearer(),
    )
    answer = await house.suite.explain("alice", await house.document("alice"))

    story = await describe(house, answer.request_id)

    assert story.private
    assert told(story, "kept for this user alone")


async def test_what_the_cache_remembers_is_told_while_the_ledger_cannot_be_asked(
    house: House,
) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))

    known = await describe(house, answer.request_id)
    async with house.admin.transaction():
        await house.admin.execute("LOCK quota.explain_requests IN ACCESS EXCLUSIVE MODE")
        remembered = await describe(house, answer.request_id)

    assert (known.charge_known, known.units) == (True, 1)
    assert told(known, "It costs 1 unit(s), as the ledger stands.")
    assert (remembered.charge_known, remembered.units) == (False, 1)
    assert told(remembered, "Quota does not answer")


async def test_a_hit_is_known_from_the_ledger_alone(house: House) -> None:
    pdf_hash = await house.document("alice", "bob")
    made = await house.suite.explain("alice", pdf_hash)
    await house.worker.complete(await house.worker.lease())
    hit = await house.suite.explain("bob", pdf_hash)

    story = await describe(house, hit.request_id, "bob")

    assert (story.state, story.outcome) == (STATE.REQUEST_STATE_SERVED, quota_pb2.OUTCOME_CACHED)
    assert (story.units, story.pdf_hash, story.page) == (1, pdf_hash, 1)
    assert story.generation.generation_id == made.generation_id
    assert told(story, "The result was there already.")
    async with refused(grpc.StatusCode.NOT_FOUND, "REQUEST_NOT_FOUND"):
        await describe(house, hit.request_id, "alice")


async def test_requests_of_others_are_not_told_from_unknown_ones(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))
    seen = []
    for request_id in (answer.request_id, str(uuid4())):
        async with refused(grpc.StatusCode.NOT_FOUND, "REQUEST_NOT_FOUND") as errors:
            await describe(house, request_id, "mallory")
        seen += errors
    assert seen[0].details() == seen[1].details()

    request = cache_pb2.DescribeRequestRequest(request_id=answer.request_id, user_id="alice")
    async with refused(grpc.StatusCode.PERMISSION_DENIED, "NOT_YOUR_USER"):
        await house.suite.cache.DescribeRequest(request, metadata=house.suite.as_user("mallory"))
    own = await house.suite.cache.DescribeRequest(request, metadata=house.suite.as_user("alice"))
    assert own.request_id == answer.request_id


async def test_admins_need_not_know_whose_request_it_is(house: House) -> None:
    answer = await house.suite.explain("alice", await house.document("alice"))

    story = await describe(house, answer.request_id, "", scope="admin")

    assert (story.user_id, story.outcome) == ("alice", quota_pb2.OUTCOME_GENERATED)
    async with refused(grpc.StatusCode.NOT_FOUND, "REQUEST_NOT_FOUND"):
        await describe(house, str(uuid4()), "", scope="admin")


@pytest.mark.parametrize(
    ("request_id", "user", "field"),
    [("", "alice", "request_id"), ("x", "alice", "request_id"), (f"{UUID(int=1)}", "", "user_id")],
)
async def test_a_bad_question_names_its_field(
    house: House, request_id: str, user: str, field: str
) -> None:
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await describe(house, request_id, user)

    assert field in seen[0].details()
