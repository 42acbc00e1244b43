"""Sliding windows: exact under any concurrency, with retry times that are true."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from services.quota.config import Config
from services.quota.domain import AdmitRequest, Book, Decision, Outcome, Purchase
from services.quota.rules import admit
from services.quota.store import QuotaStore
from services.runtime.database import open_database
from tests.quota.conftest import HASH, Ledger, ask, quota_service
from tests.suite import Keys, metadata

START = datetime(2026, 1, 1, tzinfo=UTC)
RULES = Config.model_construct(
    units_per_period=10_000,
    period_days=31,
    price_generated=1,
    price_cached=1,
    price_joined=0,
    soft_limit=3,
    hard_limit=10,
    daily_limit=100,
).rules()


async def test_eighty_at_once_admit_exactly_the_limit(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with (
        quota_service(databases, keys) as first,
        quota_service(databases, keys) as second,
    ):
        services = [first, second]
        answers = await asyncio.gather(*(services[n % 2].admit(ask()) for n in range(80)))

        decisions = Counter(answer.decision for answer in answers)
        assert decisions == {pb.DECISION_ADMITTED: 10, pb.DECISION_RATE_LIMITED: 70}
        assert await first.balance("alice") == 990


async def test_a_batch_of_one_user_is_held_to_the_limit_too(ledger: Ledger) -> None:
    answers = await ledger.admit_many(*(ask() for _ in range(15)))

    assert [answer.decision == pb.DECISION_ADMITTED for answer in answers] == 10 * [True] + 5 * [
        False
    ]
    assert answers[-1].retry_after.ToTimedelta() <= timedelta(seconds=10)


async def test_the_soft_tier_warns_and_lets_pass(ledger: Ledger) -> None:
    answers = [await ledger.admit(ask()) for _ in range(4)]

    warnings = [
        next(limit.warning for limit in answer.limits if limit.tier == "soft") for answer in answers
    ]
    assert warnings == [False, False, False, True]


async def test_a_refusal_leaves_no_trace(ledger: Ledger) -> None:
    answers = await ledger.admit_many(*(ask() for _ in range(11)))
    refused = answers[-1]

    count = await ledger.connection.fetchval("SELECT count(*) FROM quota.explain_requests")
    assert refused.decision == pb.DECISION_RATE_LIMITED
    assert count == 10


async def test_status_tells_what_is_left(ledger: Ledger) -> None:
    await ledger.admit(ask())

    status = await ledger.stub.GetQuotaStatus(
        pb.GetQuotaStatusRequest(user_id="alice"), metadata=ledger.bearer
    )

    tiers = {tier.tier: (tier.limit, tier.used, tier.remaining) for tier in status.tiers}
    assert tiers == {"soft": (3, 1, 2), "hard": (10, 1, 9), "daily": (100, 1, 99)}
    assert status.remaining_units == 999


async def test_old_admissions_are_forgotten_however_many_there_are(
    databases: Mapping[str, str],
) -> None:
    async with open_database(databases["quota"], application_name="test") as database:
        async with database.connection() as connection:
            await connection.execute(
                "INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at)"
                " SELECT 'alice', 'explain_page', now() - interval '1 hour' * (n % 2) * 26"
                " FROM generate_series(1, 20002) AS n"
            )

        await QuotaStore(database, RULES).prune_windows()

        async with database.connection() as connection:
            left = await connection.fetchval("SELECT count(*) FROM quota.ai_request_log")
    assert left == 10001


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask(request_id="not-a-uuid"), "request_id"),
        (ask(user=""), "user_id"),
        (ask(endpoint="fly"), "endpoint"),
        (ask(outcome=pb.OUTCOME_REPLAYED), "outcome"),
        (ask(page=0), "page.page"),
    ],
)
async def test_a_malformed_request_names_its_field(
    ledger: Ledger, request_: pb.AdmitRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ledger.admit(request_)

    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (refusal.value.details() or "").startswith(field)


async def test_a_user_sees_only_its_own_status(ledger: Ledger, keys: Keys) -> None:
    request = pb.GetQuotaStatusRequest(user_id="alice")
    own = await ledger.stub.GetQuotaStatus(request, metadata=metadata(keys.user_token("alice")))
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ledger.stub.GetQuotaStatus(request, metadata=metadata(keys.user_token("bob")))

    assert own.remaining_units == 1000
    assert refusal.value.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_users_cannot_charge_or_refund_themselves(ledger: Ledger, keys: Keys) -> None:
    for token in (keys.user_token("alice"), keys.token("gateway")):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ledger.stub.Refund(pb.RefundRequest(), metadata=metadata(token))
        assert refusal.value.code() == grpc.StatusCode.PERMISSION_DENIED


def request_at(book: Book) -> AdmitRequest:
    purchase = Purchase(
        user_id=book.user_id,
        endpoint="explain_page",
        pdf_hash=HASH,
        page=1,
        locale="en",
        effective_mode="text_only",
    )
    return AdmitRequest(request_id=uuid4(), purchase=purchase, outcome=Outcome.CACHED)


@given(st.lists(st.integers(min_value=0, max_value=4_000_000), min_size=1, max_size=250))
def test_windows_never_hold_more_than_their_limit_and_retry_times_are_true(
    pauses_ms: list[int],
) -> None:
    book = Book(user_id="alice", balance_units=10_000, period_ends_at=START + timedelta(days=31))
    now = START
    for pause in pauses_ms:
        now += timedelta(milliseconds=pause)
        decided = admit(book, request_at(book), None, rules=RULES, now=now)
        wait = decided.answer.retry_after
        if wait is not None:
            early = now + wait - timedelta(microseconds=1)
            assert _decision(book, early) is Decision.RATE_LIMITED
            assert _decision(book, now + wait) is Decision.ADMITTED
        book = decided.book
        for tier in RULES.tiers:
            inside = [a for a in book.admissions if a.admitted_at > now - tier.window]
            assert not tier.blocks or len(inside) <= tier.limit


def _decision(book: Book, now: datetime) -> Decision:
    return admit(book, request_at(book), None, rules=RULES, now=now).answer.decision
