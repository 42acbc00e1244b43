"""ExplainPage: one generation for everyone, charged fairly, for who holds the document."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.quota.v1 import quota_pb2

from services.cache.__main__ import compose
from services.cache.config import Config
from services.runtime.server import running
from tests.cache.conftest import House, details, refused
from tests.suite import Keys


async def test_the_first_generates_the_next_joins_and_the_last_is_served(house: House) -> None:
    pdf_hash = await house.document("alice", "bob", "carol")

    first = await house.suite.explain("alice", pdf_hash)
    second = await house.suite.explain("bob", pdf_hash)
    await house.worker.complete(await house.worker.lease())
    third = await house.suite.explain("carol", pdf_hash)

    assert first.outcome == quota_pb2.OUTCOME_GENERATED
    assert first.queue_position == 1
    assert second.outcome == quota_pb2.OUTCOME_JOINED
    assert third.outcome == quota_pb2.OUTCOME_CACHED
    assert third.status == cache_pb2.GENERATION_STATUS_READY
    assert [sticker.title for sticker in third.stickers] == ["Entropy"]
    assert len({first.generation_id, second.generation_id, third.generation_id}) == 1
    assert [answer.receipt.units for answer in (first, second, third)] == [1, 0, 1]
    assert [await house.balance(user) for user in ("alice", "bob", "carol")] == [999, 1000, 999]


async def test_two_hundred_callers_of_a_cold_page_start_one_generation(house: House) -> None:
    users = [f"user-{n}" for n in range(200)]
    pdf_hash = await house.document(*users)

    answers = await asyncio.gather(*(house.suite.explain(user, pdf_hash) for user in users))

    assert len({answer.generation_id for answer in answers}) == 1
    outcomes = Counter(answer.outcome for answer in answers)
    assert outcomes == {quota_pb2.OUTCOME_GENERATED: 1, quota_pb2.OUTCOME_JOINED: 199}
    assert await house.admin.fetchval("SELECT count(*) FROM cache.generations") == 1
    # Those who lost the race for the insert were charged first; all but one have it back.
    await house.until("SELECT count(*) = 0 FROM cache.outbox")
    spent = await house.admin.fetchval("SELECT sum(1000 - balance_units) FROM quota.accounts")
    assert spent == 1
    assert sum(answer.receipt.units for answer in answers) == 1


async def test_the_same_request_again_is_answered_alike_and_charged_once(house: House) -> None:
    pdf_hash = await house.document("alice")
    request_id = str(uuid4())

    first = await house.suite.explain("alice", pdf_hash, request_id=request_id)
    again = await house.suite.explain("alice", pdf_hash, request_id=request_id)

    assert again.outcome == quota_pb2.OUTCOME_REPLAYED
    assert again.generation_id == first.generation_id
    assert again.receipt == first.receipt
    assert await house.balance("alice") == 999


async def test_the_same_request_many_times_at_once_is_charged_once(house: House) -> None:
    pdf_hash = await house.document("alice")
    request_id = str(uuid4())

    answers = await asyncio.gather(
        *(house.suite.explain("alice", pdf_hash, request_id=request_id) for _ in range(10))
    )

    assert len({answer.generation_id for answer in answers}) == 1
    assert await house.balance("alice") == 999


async def test_a_hit_asked_again_is_replayed_from_the_ledger(house: House) -> None:
    pdf_hash = await house.document("alice", "bob")
    await house.suite.explain("alice", pdf_hash)
    await house.worker.complete(await house.worker.lease())
    request_id = str(uuid4())

    hit = await house.suite.explain("bob", pdf_hash, request_id=request_id)
    again = await house.suite.explain("bob", pdf_hash, request_id=request_id)

    assert hit.outcome == quota_pb2.OUTCOME_CACHED
    assert again.outcome == quota_pb2.OUTCOME_REPLAYED
    assert again.stickers == hit.stickers
    assert await house.balance("bob") == 999


async def test_a_request_id_with_other_parameters_is_refused(house: House) -> None:
    pdf_hash, other = await house.document("alice"), await house.document("alice", "bob")
    request_id = str(uuid4())
    await house.suite.explain("alice", pdf_hash, request_id=request_id)

    for user, hash_, locale in (
        ("alice", pdf_hash, "zh-Hans"),
        ("alice", other, "en"),
        ("bob", other, "en"),
    ):
        async with refused(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED"):
            await house.suite.explain(user, hash_, locale=locale, request_id=request_id)
    assert await house.balance("alice") == 999


async def test_each_language_is_a_generation_of_its_own(house: House) -> None:
    pdf_hash = await house.document("alice")

    english = await house.suite.explain("alice", pdf_hash)
    chinese = await house.suite.explain("alice", pdf_hash, locale="zh-Hans")

    assert english.generation_id != chinese.generation_id


async def test_a_document_one_does_not_hold_is_as_good_as_unknown(house: House) -> None:
    pdf_hash = await house.document("alice")
    messages = []

    for hash_ in (pdf_hash, "f" * 64):
        async with refused(grpc.StatusCode.NOT_FOUND, "FILE_NOT_FOUND") as seen:
            await house.suite.explain("mallory", hash_)
        messages.append(seen[0].details())

    assert messages[0] == messages[1]
    assert await house.admin.fetchval("SELECT count(*) FROM cache.generations") == 0


async def test_a_generation_is_shown_to_who_asked_or_holds_the_document(house: House) -> None:
    pdf_hash = await house.document("alice", "bob")
    answer = await house.suite.explain("alice", pdf_hash)

    async def look(user: str) -> str:
        request = cache_pb2.GetGenerationRequest(generation_id=answer.generation_id, user_id=user)
        response = await house.suite.cache.GetGeneration(
            request, metadata=house.suite.as_user(user)
        )
        return response.generation.generation_id

    assert await look("alice") == await look("bob") == answer.generation_id
    async with refused(grpc.StatusCode.NOT_FOUND, "GENERATION_NOT_FOUND"):
        await look("mallory")
    for_alice = cache_pb2.GetGenerationRequest(generation_id=answer.generation_id, user_id="alice")
    async with refused(grpc.StatusCode.PERMISSION_DENIED, "NOT_YOUR_USER"):
        await house.suite.cache.GetGeneration(for_alice, metadata=house.suite.as_user("mallory"))


async def test_a_user_token_acts_only_for_its_own_user(house: House) -> None:
    pdf_hash = await house.document("alice")
    request = cache_pb2.ExplainPageRequest(user_id="alice", pdf_hash=pdf_hash, page=1, locale="en")

    async with refused(grpc.StatusCode.PERMISSION_DENIED, "NOT_YOUR_USER"):
        await house.suite.cache.ExplainPage(request, metadata=house.suite.as_user("mallory"))
    answer = await house.suite.cache.ExplainPage(request, metadata=house.suite.as_user("alice"))
    assert answer.outcome == quota_pb2.OUTCOME_GENERATED


@pytest.mark.parametrize(
    ("change", "field", "reason"),
    [
        ({"page": 0}, "page", "INVALID_ARGUMENT"),
        ({"page": 2}, "page", "PAGE_OUT_OF_RANGE"),
        ({"locale": "de"}, "locale", "INVALID_ARGUMENT"),
        ({"request_id": "nonsense"}, "request_id", "INVALID_ARGUMENT"),
        ({"user_id": ""}, "user_id", "INVALID_ARGUMENT"),
        ({"user_id": "a b"}, "user_id", "INVALID_ARGUMENT"),
        ({"pdf_hash": "ABC"}, "pdf_hash", "INVALID_ARGUMENT"),
        ({"file_id": "1234"}, "file_id", "INVALID_ARGUMENT"),
    ],
)
async def test_bad_input_names_its_field_and_costs_nothing(
    house: House, change: dict[str, object], field: str, reason: str
) -> None:
    pdf_hash = await house.document("alice")
    fields: dict[str, object] = {"user_id": "alice", "page": 1, "locale": "en", **change}
    if "file_id" not in change:
        fields.setdefault("pdf_hash", pdf_hash)
    request = cache_pb2.ExplainPageRequest(**fields)  # type: ignore[arg-type]

    async with refused(grpc.StatusCode.INVALID_ARGUMENT, reason) as seen:
        await house.suite.cache.ExplainPage(request, metadata=house.suite.bearer())

    assert details(seen[0])["BadRequest"].field_violations[0].field == field
    assert await house.admin.fetchval("SELECT count(*) FROM cache.requests") == 0


async def test_a_full_window_says_when_to_come_back_and_starts_nothing(house: House) -> None:
    documents = [await house.document("alice") for _ in range(11)]
    for pdf_hash in documents[:10]:
        await house.suite.explain("alice", pdf_hash)

    async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED") as seen:
        await house.suite.explain("alice", documents[10])

    assert 0 < details(seen[0])["RetryInfo"].retry_delay.ToTimedelta().total_seconds() <= 10
    trailing = dict(seen[0].trailing_metadata())
    assert "retry-after" in trailing
    assert trailing["x-ratelimit-remaining"] == "0"
    assert await house.admin.fetchval("SELECT count(*) FROM cache.generations") == 10
    assert await house.admin.fetchval("SELECT count(*) FROM cache.requests") == 10


async def test_a_spent_quota_says_so_and_does_not_ask_to_wait(house: House) -> None:
    first, second = await house.document("alice"), await house.document("alice")
    await house.suite.explain("alice", first)
    await house.admin.execute("UPDATE quota.accounts SET balance_units = 0")
    await house.admin.execute(
        "INSERT INTO quota.ledger_entries (user_id, kind, units, reason)"
        " VALUES ('alice', 'expire', -999, 'test')"
    )

    async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXHAUSTED") as seen:
        await house.suite.explain("alice", second)

    assert "QuotaFailure" in details(seen[0])
    assert "RetryInfo" not in details(seen[0])


async def test_limits_travel_in_the_answer_and_as_trailing_metadata(house: House) -> None:
    pdf_hash = await house.document("alice")
    call = house.suite.cache.ExplainPage(
        cache_pb2.ExplainPageRequest(user_id="alice", pdf_hash=pdf_hash, page=1, locale="en"),
        metadata=house.suite.bearer(),
    )

    limits = {limit.tier: limit for limit in (await call).limits}

    told = {tier: (limit.limit, limit.remaining) for tier, limit in limits.items()}
    assert told == {"soft": (3, 2), "hard": (10, 9), "daily": (100, 99)}
    trailing = dict(await call.trailing_metadata())
    assert trailing["x-ratelimit-limit"] == "10"
    assert trailing["x-ratelimit-remaining"] == "9"
    resets_at = limits["hard"].resets_at.ToMicroseconds() / 1e6
    assert abs(int(trailing["x-ratelimit-reset"]) - resets_at) <= 0.5


async def test_a_twin_waits_for_the_call_that_came_first(house: House) -> None:
    pdf_hash, request_id = await house.document("alice"), str(uuid4())
    await house.suite.explain("alice", await house.document("alice"))  # opens the account
    waiting = "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted"
    async with house.admin.transaction():
        await house.admin.execute("SELECT FROM quota.accounts FOR UPDATE")
        first = asyncio.create_task(house.suite.explain("alice", pdf_hash, request_id=request_id))
        await house.until(waiting)
        twin = asyncio.create_task(house.suite.explain("alice", pdf_hash, request_id=request_id))
        for _ in range(50):  # time for the twin to do something rash
            await house.admin.fetchval("SELECT 1")

    assert (await first).outcome == quota_pb2.OUTCOME_GENERATED
    assert (await twin).outcome == quota_pb2.OUTCOME_REPLAYED


async def test_trouble_with_the_caches_own_token_is_not_the_callers(
    house: House, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    pdf_hash = await house.document("alice")
    expired = tmp_path / "expired.jwt"
    expired.write_text(keys.token("cache", lifetime=timedelta(seconds=-1)))
    config = Config(
        database_url=databases["cache"],
        verify_key_file=keys.verify_key_file,
        token_file=expired,
        registry_address=house.suite.addresses["registry"],
        quota_address=house.suite.addresses["quota"],
    )
    request = cache_pb2.ExplainPageRequest(user_id="alice", pdf_hash=pdf_hash, page=1, locale="en")

    async with (
        running("cache", config, compose) as here,
        grpc.aio.insecure_channel(here.address) as channel,
        refused(grpc.StatusCode.UNAVAILABLE, "REGISTRY_UNAVAILABLE"),
    ):
        await CacheServiceStub(channel).ExplainPage(request, metadata=house.suite.bearer())
