"""Sliding windows: exact under any concurrency, with retry times that are true."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from pydantic import ValidationError

from services.doctor.examine import find_violations
from services.quota.config import Config
from services.quota.domain import DAY, AdmitRequest, Answer, Decision
from services.quota.metrics import SHADOW_DECISIONS
from services.quota.store import QuotaStore
from services.runtime.database import Database
from tests.quota.conftest import HASH, Ledger, ask, quota_process, quota_service
from tests.suite import Keys, metadata

START = datetime(2026, 1, 1, tzinfo=UTC)
REQUIRED = {"database_url": "postgresql://nowhere", "verify_key_file": "none"}
RULES = Config.model_validate({**REQUIRED, "units_per_period": 10_000}).rules()


async def test_eighty_at_once_over_three_processes_admit_exactly_the_limit(
    databases: Mapping[str, str], ledger: Ledger, keys: Keys
) -> None:
    bearer = metadata(keys.token("cache"))
    async with AsyncExitStack() as stack:
        stubs = []
        for _ in range(3):
            process = quota_process(databases["quota"], keys)
            _, channel = await stack.enter_async_context(process)
            stubs.append(QuotaServiceStub(channel))

        answers = await asyncio.gather(
            *(stubs[n % 3].Admit(ask(), metadata=bearer) for n in range(80))
        )

    decisions = Counter(answer.decision for answer in answers)
    assert decisions == {pb.DECISION_ADMITTED: 10, pb.DECISION_RATE_LIMITED: 70}
    assert await ledger.balance("alice") == 990
    assert await ledger.drift() == []


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
    database: Database,
) -> None:
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at, sequence)"
            " SELECT 'alice', 'explain_page', now() - interval '1 hour' * (n % 2) * 26, n"
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


def request_of(user: str = "alice", outcome: str = "cached") -> AdmitRequest:
    return AdmitRequest(
        uuid4(), user, "explain_page", outcome, None, HASH, 1, "en", "text_only", None
    )


async def decide(store: QuotaStore, at: datetime) -> Answer:
    [answer] = await store.admit_many([request_of()], moment=at)
    return answer


async def test_retry_times_are_true_to_the_microsecond(database: Database) -> None:
    """Whatever the pauses, at the time told there is room for one more, and not before."""
    store, dice, now = QuotaStore(database, RULES), random.Random(3), START
    refused = set()
    for _ in range(250):
        now += timedelta(milliseconds=dice.choice([0, 1, 700, 9_999, 600_000]))
        wait = (await decide(store, now)).retry_after
        if wait is None:
            continue
        refused.add(wait > timedelta(seconds=10))
        early = await decide(store, now + wait - timedelta(microseconds=1))
        assert early.decision == Decision.RATE_LIMITED
        now += wait
        assert (await decide(store, now)).decision == Decision.ADMITTED
    assert refused == {True, False}, "both the hard and the daily window were met"


async def test_a_day_is_a_day_to_the_microsecond(database: Database) -> None:
    store, instant = QuotaStore(database, RULES), timedelta(microseconds=1)
    for number in range(100):
        spread = START + number * timedelta(minutes=14)
        assert (await decide(store, spread)).decision == Decision.ADMITTED

    assert (await decide(store, START + DAY - instant)).decision == Decision.RATE_LIMITED
    assert (await decide(store, START + DAY)).decision == Decision.ADMITTED
    assert (await decide(store, START + DAY)).decision == Decision.RATE_LIMITED


async def test_a_clock_that_goes_back_opens_no_window(database: Database) -> None:
    store = QuotaStore(database, RULES)
    for _ in range(10):
        await decide(store, START)

    back = await decide(store, START - timedelta(hours=2))

    assert back.decision == Decision.RATE_LIMITED
    assert back.retry_after == timedelta(hours=2, seconds=10)
    assert back.remaining_units == 9_990, "no period begins because the clock went back"


async def test_a_clock_that_goes_back_a_little_lets_nobody_in_twice(database: Database) -> None:
    store = QuotaStore(database, RULES)
    for _ in range(5):
        await decide(store, START)

    later = [await decide(store, START - timedelta(seconds=5)) for _ in range(8)]

    assert [answer.decision for answer in later].count(Decision.ADMITTED) == 5
    async with database.connection() as connection:
        assert await find_violations(connection, only={"admissions_have_their_own_number"}) == {}


async def test_no_statement_reads_a_whole_table(database: Database) -> None:
    """What the planner would choose for empty tables must not stay chosen when they have grown."""
    store = QuotaStore(database, RULES)
    async with database.connection() as connection:
        before = await connection.fetchval(SEQUENTIAL_SCANS)
    await store.admit_many([request_of(f"user-{n}") for n in range(50)])
    await store.admit_many([request_of("user-1") for _ in range(20)])
    async with database.connection() as connection:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        after = await connection.fetchval(SEQUENTIAL_SCANS)

    assert after == before


SEQUENTIAL_SCANS = """
SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = 'quota'
"""


@pytest.mark.parametrize(
    ("limits", "plan", "expected"),
    [
        ({}, "beta", 10),
        ({"*": {"*": {"hard": 4}}}, "beta", 4),
        ({"*": {"explain_page": {"hard": 5}}}, "beta", 5),
        ({"beta": {"*": {"hard": 6}}, "*": {"explain_page": {"hard": 5}}}, "beta", 6),
        ({"beta": {"explain_page": {"hard": 7}, "*": {"hard": 6}}}, "beta", 7),
        ({"free": {"*": {"hard": 2}}}, "beta", 10),
        ({"free": {"*": {"hard": 2}}}, "free", 2),
    ],
)
async def test_limits_go_by_plan_and_endpoint(
    databases: Mapping[str, str], keys: Keys, limits: Any, plan: str, expected: int
) -> None:
    async with quota_service(databases, keys, limits=limits, plan_units={"free": 50}) as ledger:
        await ledger.connection.execute(
            "INSERT INTO quota.accounts (user_id, balance_units, period_ends_at, plan)"
            " VALUES ('alice', 0, now(), $1)",
            plan,
        )

        answers = await ledger.admit_many(*(ask() for _ in range(12)))

        admitted = [one for one in answers if one.decision == pb.DECISION_ADMITTED]
        assert len(admitted) == expected
        assert admitted[0].receipt.remaining_units == (49 if plan == "free" else 999)
        [hard] = [limit for limit in admitted[0].limits if limit.tier == "hard"]
        assert (hard.limit, hard.remaining) == (expected, expected - 1)


def test_limits_of_an_unknown_plan_are_refused_at_the_start() -> None:
    with pytest.raises(ValidationError, match="'gold' is none of"):
        Config.model_validate({**REQUIRED, "limits": {"gold": {"*": {"hard": 1}}}})


async def test_in_shadow_mode_limits_are_told_but_nobody_is_refused(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with quota_service(databases, keys, shadow_limits=True) as ledger:
        before = SHADOW_DECISIONS.labels("rate_limited")._value.get()
        answers = await ledger.admit_many(*(ask() for _ in range(12)))

    assert {answer.decision for answer in answers} == {pb.DECISION_ADMITTED}
    shadowed = [answer.shadow_decision for answer in answers]
    assert shadowed == 10 * [pb.DECISION_UNSPECIFIED] + 2 * [pb.DECISION_RATE_LIMITED]
    assert SHADOW_DECISIONS.labels("rate_limited")._value.get() == before + 2
