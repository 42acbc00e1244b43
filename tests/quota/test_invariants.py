"""Each invariant is clean on a ledger in use and tells of the very damage it is there for."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from glossa.quota.v1 import quota_pb2 as pb

from services.quota.invariant_store import INVARIANTS, WINDOW_IS_NEVER_ABOVE_ITS_LIMIT
from tests.quota.conftest import Ledger, ask, operation_of, refund_of

DAMAGE = {
    "balance is the sum of entries": "UPDATE quota.accounts SET balance_units = balance_units + 1",
    "balance is never negative": (
        "ALTER TABLE quota.accounts DROP CONSTRAINT account_balance_is_never_negative;"
        "UPDATE quota.accounts SET balance_units = -1"
    ),
    "a refund comes at most once": (
        "DROP INDEX quota.ledger_entry_once_per_request_idx;"
        "INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)"
        " SELECT user_id, request_id, kind, units, reason FROM quota.ledger_entries"
        " WHERE kind = 'refund'"
    ),
    "a request costs what its entries say": (
        "UPDATE quota.explain_requests SET quota_units = 0 WHERE status = 'charged'"
    ),
    "an admission has its own number": "UPDATE quota.ai_request_log SET sequence = 1",
    "spending is the sum of operations": "DELETE FROM quota.spending WHERE kind = 'document'",
}


@pytest.fixture
async def used(ledger: Ledger, admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """A ledger with charges, a refund and costs in it, as somebody sees it who may do anything."""
    requests = [ask() for _ in range(4)]
    await ledger.admit_many(*requests)
    await ledger.refund(refund_of(requests[0]), refund_of(ask(), pb.REFUND_REASON_REQUEST_ABORTED))
    await ledger.record(operation_of(user_id="alice", generation_id=str(uuid4())))
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


@pytest.mark.parametrize("name", INVARIANTS)
async def test_damage_is_found(used: "asyncpg.Connection[Any]", name: str) -> None:
    assert await used.fetch(INVARIANTS[name]) == []

    await used.execute(DAMAGE[name])

    assert await used.fetch(INVARIANTS[name]) != []


async def test_a_window_above_its_limit_is_found(used: "asyncpg.Connection[Any]") -> None:
    ten_seconds = timedelta(seconds=10)

    assert await used.fetch(WINDOW_IS_NEVER_ABOVE_ITS_LIMIT, 4, ten_seconds) == []
    assert await used.fetch(WINDOW_IS_NEVER_ABOVE_ITS_LIMIT, 3, ten_seconds) != []
