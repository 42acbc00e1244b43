"""Preferences: who shares, and that every charge is made under one preference."""

import asyncio
from collections.abc import Mapping
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb

from tests.quota.conftest import Ledger, ask, quota_service, refund_of
from tests.suite import Keys, metadata


async def preferences(ledger: Ledger, user: str) -> pb.Preferences:
    request = pb.GetPreferencesRequest(user_id=user)
    return (await ledger.stub.GetPreferences(request, metadata=ledger.bearer)).preferences


async def count(ledger: Ledger, table: str) -> int:
    found: int = await ledger.connection.fetchval(f"SELECT count(*) FROM quota.{table}")
    return found


async def test_who_never_chose_shares(ledger: Ledger) -> None:
    chosen = await preferences(ledger, "alice")

    assert chosen.share_to_cache
    assert not chosen.HasField("updated_at")


async def test_a_choice_is_kept_and_told_with_every_decision(ledger: Ledger) -> None:
    await ledger.share("alice", False)

    chosen = await preferences(ledger, "alice")
    answer = await ledger.admit(ask())
    other = await ledger.admit(ask("bob"))

    assert not chosen.share_to_cache
    assert chosen.HasField("updated_at")
    assert (answer.share_to_cache, other.share_to_cache) == (False, True)


async def test_an_update_without_a_choice_changes_none(ledger: Ledger, keys: Keys) -> None:
    await ledger.share("alice", False)

    response = await ledger.stub.UpdatePreferences(
        pb.UpdatePreferencesRequest(user_id="alice"), metadata=metadata(keys.token("gateway"))
    )

    assert not response.preferences.share_to_cache


@pytest.mark.parametrize("stored", [True, False])
async def test_a_charge_under_the_wrong_preference_is_refused_without_a_trace(
    ledger: Ledger, stored: bool
) -> None:
    await ledger.share("alice", stored)

    wrong = await ledger.admit(ask(expected_share_to_cache=not stored))

    assert wrong.decision == pb.DECISION_PREFERENCE_CHANGED
    assert wrong.share_to_cache is stored
    assert (wrong.receipt.units, wrong.receipt.remaining_units) == (0, 1000)
    assert await count(ledger, "explain_requests") == 0
    assert await count(ledger, "ai_request_log") == 0
    right = await ledger.admit(ask(expected_share_to_cache=stored))
    assert right.decision == pb.DECISION_ADMITTED


async def test_a_replay_stays_a_replay_whatever_the_preference_is_now(ledger: Ledger) -> None:
    request = ask(expected_share_to_cache=True)
    await ledger.admit(request)
    await ledger.share("alice", False)

    again = await ledger.admit(request)

    assert again.decision == pb.DECISION_REPLAYED
    assert again.receipt.units == 1


@pytest.mark.parametrize("outcome", [pb.OUTCOME_GENERATED, pb.OUTCOME_JOINED, pb.OUTCOME_CACHED])
async def test_who_does_not_share_always_pays(
    databases: Mapping[str, str], keys: Keys, outcome: "pb.Outcome.ValueType"
) -> None:
    async with quota_service(
        databases, keys, price_generated=3, price_cached=0, price_joined=0
    ) as ledger:
        await ledger.share("alice", False)

        answer = await ledger.admit(ask(outcome=outcome, generation_id=str(uuid4())))

        assert answer.receipt.units == 3


async def test_repricing_goes_by_the_preference_of_the_charge(ledger: Ledger) -> None:
    await ledger.share("alice", False)
    private = ask()
    await ledger.admit(private)
    await ledger.share("alice", True)

    joined = refund_of(private, pb.REFUND_REASON_REPRICED, pb.OUTCOME_JOINED)
    [repriced] = await ledger.refund(joined)

    assert repriced.receipt.units == 1
    assert await ledger.balance("alice") == 999


async def test_every_charge_is_made_under_one_preference(ledger: Ledger) -> None:
    """Whatever the interleaving, a charge that expects sharing never lands on one who does not."""
    asked = [ask(expected_share_to_cache=True, outcome=pb.OUTCOME_CACHED) for _ in range(9)]
    flips = [ledger.share("alice", choice) for choice in (False, True) * 6]

    *answers, _ = await asyncio.gather(*(ledger.admit(one) for one in asked), *flips)

    kept = await ledger.connection.fetch("SELECT share_to_cache FROM quota.explain_requests")
    admitted = [one for one in answers if getattr(one, "decision", 0) == pb.DECISION_ADMITTED]
    assert len(kept) == len(admitted)
    assert all(row["share_to_cache"] for row in kept)


async def test_nobody_chooses_for_somebody_else(ledger: Ledger, keys: Keys) -> None:
    bob = metadata(keys.user_token("bob"))

    for call in (
        ledger.stub.GetPreferences(pb.GetPreferencesRequest(user_id="alice"), metadata=bob),
        ledger.stub.UpdatePreferences(
            pb.UpdatePreferencesRequest(user_id="alice", share_to_cache=False), metadata=bob
        ),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call
        assert refusal.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert (await preferences(ledger, "alice")).share_to_cache


async def test_a_choice_waits_for_charges_under_way(ledger: Ledger) -> None:
    """Once it is answered, no charge under the old preference can still land."""
    await ledger.admit(ask())
    watching = await asyncpg.connect(ledger.url)
    async with ledger.connection.transaction():
        await ledger.connection.execute("SELECT FROM quota.accounts FOR UPDATE")
        choice = asyncio.ensure_future(ledger.share("alice", False))
        async with asyncio.timeout(60):
            while not await watching.fetchval(SOMEBODY_WAITS):
                assert not choice.done()
    await watching.close()

    assert not (await choice).share_to_cache


SOMEBODY_WAITS = """
SELECT count(*) > 0 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""
