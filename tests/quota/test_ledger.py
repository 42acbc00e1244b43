"""Charges and refunds: once each, always adding up."""

import asyncio
from collections.abc import Mapping
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb

from tests.quota.conftest import Ledger, ask, quota_service, refund_of
from tests.suite import Keys


async def test_a_charge_is_taken_once_however_often_it_is_asked(ledger: Ledger) -> None:
    request = ask(generation_id=str(uuid4()))

    first = await ledger.admit(request)
    again = await ledger.admit(request)

    assert first.decision == pb.DECISION_ADMITTED
    assert (first.receipt.units, first.receipt.remaining_units) == (1, 999)
    assert again.decision == pb.DECISION_REPLAYED
    assert again.outcome == pb.OUTCOME_GENERATED
    assert again.generation_id == request.generation_id
    assert await ledger.balance("alice") == 999
    assert await ledger.drift() == []


async def test_the_same_request_at_the_same_time_is_charged_once(ledger: Ledger) -> None:
    request = ask()

    answers = await asyncio.gather(*(ledger.admit(request) for _ in range(20)))

    decisions = sorted(answer.decision for answer in answers)
    assert decisions == [pb.DECISION_ADMITTED] + 19 * [pb.DECISION_REPLAYED]
    assert await ledger.balance("alice") == 999


async def test_a_request_id_of_another_user_or_page_is_refused(ledger: Ledger) -> None:
    request = ask()
    await ledger.admit(request)

    for other in (
        ask("bob", request_id=request.request_id),
        ask(request_id=request.request_id, page=2),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ledger.admit(other)
        assert refusal.value.code() == grpc.StatusCode.ALREADY_EXISTS
    assert await ledger.balance("alice") == 999
    assert await ledger.balance("bob") == 1000


async def test_one_request_id_from_two_users_at_once_is_charged_to_one(ledger: Ledger) -> None:
    shared = str(uuid4())
    batches = [
        ledger.admit_many(ask(f"user-{n}", request_id=shared), ask(f"user-{n}")) for n in range(10)
    ]

    answers = await asyncio.gather(*batches)

    assert sum(answer[0].decision == pb.DECISION_ADMITTED for answer in answers) == 1
    assert all(answer[1].decision == pb.DECISION_ADMITTED for answer in answers)
    assert await ledger.drift() == []


async def test_a_refund_gives_back_once_and_ends_the_request(ledger: Ledger) -> None:
    request = ask()
    await ledger.admit(request)

    [first] = await ledger.refund(refund_of(request))
    [again] = await ledger.refund(refund_of(request))
    retry = await ledger.admit(request)

    assert first.result == pb.REFUND_RESULT_REFUNDED
    assert again.result == pb.REFUND_RESULT_ALREADY_SETTLED
    assert retry.decision == pb.DECISION_REQUEST_ID_DEAD
    assert await ledger.balance("alice") == 1000
    assert await ledger.drift() == []


async def test_simultaneous_refunds_give_back_once(ledger: Ledger) -> None:
    request = ask()
    await ledger.admit(request)

    answers = await asyncio.gather(*(ledger.refund(refund_of(request)) for _ in range(10)))

    assert sum(item.result == pb.REFUND_RESULT_REFUNDED for [item] in answers) == 1
    assert await ledger.balance("alice") == 1000


async def test_a_refund_before_the_charge_keeps_the_charge_out(ledger: Ledger) -> None:
    request = ask()

    [void] = await ledger.refund(refund_of(request, pb.REFUND_REASON_REQUEST_ABORTED))
    late = await ledger.admit(request)

    assert void.result == pb.REFUND_RESULT_VOIDED
    assert late.decision == pb.DECISION_REQUEST_ID_DEAD
    assert await ledger.balance("alice") == 1000


async def test_a_request_that_turned_out_cheaper_gets_the_difference_and_lives(
    ledger: Ledger,
) -> None:
    request = ask()
    await ledger.admit(request)
    cheaper = refund_of(request, pb.REFUND_REASON_REPRICED, pb.OUTCOME_JOINED)

    [repriced] = await ledger.refund(cheaper)
    [again] = await ledger.refund(cheaper)
    replay = await ledger.admit(request)

    assert repriced.result == pb.REFUND_RESULT_REPRICED
    assert (repriced.receipt.units, repriced.receipt.remaining_units) == (0, 1000)
    assert again.result == pb.REFUND_RESULT_ALREADY_SETTLED
    assert replay.decision == pb.DECISION_REPLAYED
    assert replay.receipt.units == 0
    assert await ledger.drift() == []


async def test_an_empty_account_is_refused_and_never_goes_below_zero(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with quota_service(databases, keys, units_per_period=3) as ledger:
        answers = await asyncio.gather(*(ledger.admit(ask()) for _ in range(8)))

        spent = [a for a in answers if a.decision == pb.DECISION_QUOTA_EXHAUSTED]
        assert len(spent) == 5
        assert await ledger.balance("alice") == 0
        joined = await ledger.admit(ask(outcome=pb.OUTCOME_JOINED))
        assert joined.decision == pb.DECISION_ADMITTED


async def test_a_new_period_grants_a_new_allowance(ledger: Ledger) -> None:
    await ledger.admit(ask())
    await ledger.connection.execute(
        "UPDATE quota.accounts SET period_ends_at = now() - interval '40 days'"
    )

    assert await ledger.balance("alice") == 1000  # told before it is written
    answer = await ledger.admit(ask())

    assert answer.receipt.remaining_units == 999
    ends_at = await ledger.connection.fetchval("SELECT period_ends_at FROM quota.accounts")
    assert ends_at > await ledger.connection.fetchval("SELECT now()")
    assert await ledger.drift() == []


async def test_not_even_the_owner_can_change_an_entry(ledger: Ledger) -> None:
    await ledger.admit(ask())

    for statement in (
        "UPDATE quota.ledger_entries SET units = 0",
        "DELETE FROM quota.ledger_entries",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await ledger.connection.execute(statement)


async def test_batches_over_the_same_users_in_any_order_do_not_deadlock(ledger: Ledger) -> None:
    users = [f"user-{n}" for n in range(8)]
    batches = [
        ledger.admit_many(*(ask(user, outcome=pb.OUTCOME_JOINED) for user in order))
        for order in (users, users[::-1]) * 5
    ]

    answers = await asyncio.gather(*batches)

    assert all(a.decision == pb.DECISION_ADMITTED for batch in answers for a in batch)


async def test_repriced_and_refunded_in_one_batch_ends_refunded_and_can_be_repeated(
    ledger: Ledger,
) -> None:
    request = ask()
    await ledger.admit(request)
    batch = (
        refund_of(request, pb.REFUND_REASON_REPRICED, pb.OUTCOME_CACHED),
        refund_of(request, pb.REFUND_REASON_GENERATION_FAILED),
    )

    first = await ledger.refund(*batch)
    again = await ledger.refund(*batch)

    assert [item.result for item in first] == [
        pb.REFUND_RESULT_REPRICED,
        pb.REFUND_RESULT_REFUNDED,
    ]
    assert {item.result for item in again} == {pb.REFUND_RESULT_ALREADY_SETTLED}
    status = await ledger.connection.fetchval("SELECT status FROM quota.explain_requests")
    assert status == "refunded"
    assert await ledger.balance("alice") == 1000
    assert await ledger.drift() == []


async def test_nobody_settles_the_charge_of_somebody_else(ledger: Ledger) -> None:
    request = ask("bob")
    await ledger.admit(request)
    foreign = refund_of(request)
    foreign.user_id = "mallory"

    [item] = await ledger.refund(foreign)

    assert item.result == pb.REFUND_RESULT_ALREADY_SETTLED
    assert (await ledger.admit(request)).decision == pb.DECISION_REPLAYED
    assert await ledger.balance("bob") == 999


async def test_a_request_is_repriced_once(ledger: Ledger) -> None:
    request = ask()
    await ledger.admit(request)

    [first] = await ledger.refund(refund_of(request, pb.REFUND_REASON_REPRICED, pb.OUTCOME_CACHED))
    [second] = await ledger.refund(refund_of(request, pb.REFUND_REASON_REPRICED, pb.OUTCOME_JOINED))

    assert first.result == pb.REFUND_RESULT_REPRICED
    assert second.result == pb.REFUND_RESULT_ALREADY_SETTLED


async def test_repricing_to_what_was_charged_changes_nothing(ledger: Ledger) -> None:
    request = ask()
    await ledger.admit(request)
    same = refund_of(request, pb.REFUND_REASON_REPRICED, pb.OUTCOME_GENERATED)

    results = [*await ledger.refund(same), *await ledger.refund(same)]

    assert {item.result for item in results} == {pb.REFUND_RESULT_ALREADY_SETTLED}
    assert await ledger.balance("alice") == 999


async def test_a_hit_has_bought_what_was_there_and_cannot_be_given_up(ledger: Ledger) -> None:
    hit = ask(outcome=pb.OUTCOME_CACHED, generation_id=str(uuid4()))
    await ledger.admit(hit)

    [given_up] = await ledger.refund(refund_of(hit, pb.REFUND_REASON_REQUEST_ABORTED))
    [failed] = await ledger.refund(refund_of(hit, pb.REFUND_REASON_GOODWILL))

    assert given_up.result == pb.REFUND_RESULT_ALREADY_SETTLED
    assert given_up.receipt.units == 1
    assert failed.result == pb.REFUND_RESULT_REFUNDED
