"""What everybody spent, saved and got back, by day, without standing in anybody's way."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb

from tests.cache.conftest import refused
from tests.quota.conftest import Ledger, ask, operation_of, refund_of
from tests.suite import metadata

COST = 1_200_000  # of operation_of()
TODAY = datetime.now(UTC).date().isoformat()


async def totals(ledger: Ledger, **fields: Any) -> list[pb.ListDailyTotalsResponse.Day]:
    today = datetime.now(UTC).date()
    fields = {"first_day": str(today - timedelta(days=1)), "last_day": str(today), **fields}
    answer = await ledger.stub.ListDailyTotals(
        pb.ListDailyTotalsRequest(**fields), metadata=metadata(ledger.keys.token("admin"))
    )
    return list(answer.days)


async def test_a_day_without_anything_is_left_out(ledger: Ledger) -> None:
    assert await totals(ledger) == []


async def test_money_and_refunds_of_everybody_are_summed(ledger: Ledger) -> None:
    generation = str(uuid4())
    started = ask("alice", generation_id=generation)
    shared = [
        ask(user, outcome=pb.OUTCOME_CACHED, generation_id=generation) for user in ("bob", "carol")
    ]
    lost = [ask("dave", request_id=str(uuid4())) for _ in range(2)]
    await ledger.admit_many(started, *shared, *lost)
    await ledger.record(operation_of(generation_id=generation))
    await ledger.refund(*(refund_of(one) for one in lost))

    [day] = await totals(ledger)

    assert day.day == TODAY
    assert day.costs.cost_nanodollars == COST
    assert (day.costs.shared_requests, day.costs.saved_nanodollars) == (2, 2 * COST)
    assert [(one.reason, one.count, one.units) for one in day.refunds] == [
        ("generation_failed", 2, 2)
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"first_day": ""},
        {"last_day": "tomorrow"},
        {"first_day": "2026-02-02", "last_day": "2026-02-01"},
        {"first_day": "2026-01-01", "last_day": "2026-05-01"},
        {"first_day": "9999-12-31", "last_day": "9999-12-31"},
    ],
)
async def test_days_that_make_no_sense_are_refused(ledger: Ledger, fields: dict[str, str]) -> None:
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"):
        await totals(ledger, **fields)


@pytest.mark.parametrize("scope", ["gateway", "worker", "cache", "user"])
async def test_only_admins_are_told(ledger: Ledger, scope: str) -> None:
    async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
        await ledger.stub.ListDailyTotals(
            pb.ListDailyTotalsRequest(), metadata=metadata(ledger.keys.token(scope))
        )


async def test_a_look_that_takes_too_long_stops_no_charge(ledger: Ledger, admin_url: str) -> None:
    """Every look fails, more often than the circuit allows; charges do not notice."""
    holder = await asyncpg.connect(admin_url)
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute("LOCK TABLE quota.ai_operations")
        for _ in range(4):
            async with refused(grpc.StatusCode.UNAVAILABLE, "DATABASE_UNAVAILABLE"):
                await totals(ledger)
        admitted = await ledger.admit(ask("alice"))
        await transaction.rollback()
    finally:
        await holder.close()

    assert admitted.decision == pb.DECISION_ADMITTED
