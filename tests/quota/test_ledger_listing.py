"""The ledger as its users and admins read and mend it."""

import asyncio
from collections.abc import Mapping
from uuid import uuid4

import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb

from services.runtime.status import from_call
from tests.quota.conftest import HASH, Ledger, ask, quota_service, refund_of
from tests.suite import Keys, metadata


async def reset(ledger: Ledger, user: str = "alice", **more: object) -> pb.ResetQuotaResponse:
    request = pb.ResetQuotaRequest(user_id=user, **{"reason": "a bad day", **more})  # type: ignore[arg-type]
    return await ledger.stub.ResetQuota(request, metadata=metadata(ledger.keys.token("admin")))


async def test_every_movement_is_told_newest_first_in_words(ledger: Ledger) -> None:
    made, shared, failed = ask(page=1), ask(page=2), ask(page=3)
    hit = ask(page=4, outcome=pb.OUTCOME_CACHED, generation_id=str(uuid4()))
    for request in (made, shared, failed, hit):
        await ledger.admit(request)
    await ledger.refund(
        refund_of(shared, pb.REFUND_REASON_REPRICED, pb.OUTCOME_JOINED), refund_of(failed)
    )

    entries = (await ledger.entries("alice")).entries

    told = [(entry.units, entry.page.page, entry.explanation) for entry in entries]
    assert told == [
        (1, 3, "Given back: the explanation failed."),
        (1, 2, "Given back: somebody else had started the same explanation."),
        (-1, 4, "You opened an explanation that was ready."),
        (-1, 3, "A page was explained for you."),
        (-1, 2, "A page was explained for you."),
        (-1, 1, "A page was explained for you."),
        (1000, 0, "Your allowance for a new period."),
    ]
    assert sum(entry.units for entry in entries) == await ledger.balance("alice")
    assert entries[2].generation_id == hit.generation_id
    assert (entries[2].page.pdf_hash, entries[2].page.locale) == (HASH, "en")
    assert entries[2].kind == pb.ENTRY_KIND_CHARGE


async def test_pages_follow_each_other_without_gap_or_double(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with quota_service(databases, keys, hard_limit=100) as ledger:
        await ledger.admit_many(*(ask() for _ in range(24)))
        await ledger.admit_many(*(ask("bob") for _ in range(5)))
        seen: list[int] = []
        token = ""
        while True:
            page = await ledger.entries("alice", page_size=10, page_token=token)
            seen += [entry.entry_id for entry in page.entries]
            # New entries come while one reads, and change nothing about the pages before.
            await ledger.admit(ask())
            token = page.next_page_token
            if not token:
                break

    assert len(seen) == 25
    assert seen == sorted(set(seen), reverse=True)


@pytest.mark.parametrize(
    ("page", "field"),
    [
        ({"page_token": "garbage"}, "page_token"),
        ({"page_token": "ZW50cnkgLTE="}, "page_token"),
        ({"page_token": "ZW50cnkgeA=="}, "page_token"),
        ({"page_size": 1001}, "page_size"),
        ({"page_size": -1}, "page_size"),
    ],
)
async def test_a_malformed_page_is_refused(
    ledger: Ledger, page: Mapping[str, object], field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ledger.entries("alice", **page)

    error = from_call(refusal.value)
    assert (error.code, error.field) == ("INVALID_ARGUMENT", field)


async def test_nobody_reads_the_ledger_of_somebody_else(ledger: Ledger, keys: Keys) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ledger.stub.ListLedger(
            pb.ListLedgerRequest(user_id="alice"), metadata=metadata(keys.user_token("bob"))
        )

    assert from_call(refusal.value).reason == "NOT_YOUR_USER"


async def test_a_reset_gives_the_allowance_back_as_an_entry_once(ledger: Ledger) -> None:
    await ledger.admit_many(*(ask() for _ in range(4)))
    reset_id = str(uuid4())

    answers = await asyncio.gather(*(reset(ledger, request_id=reset_id) for _ in range(5)))

    assert {answer.remaining_units for answer in answers} == {1000}
    entries = (await ledger.entries("alice")).entries
    assert [entry.units for entry in entries if entry.kind == pb.ENTRY_KIND_RESET] == [4]
    assert entries[0].explanation == "Reset by an administrator: a bad day"
    assert await ledger.drift() == []


async def test_a_reset_without_an_id_gets_one(ledger: Ledger) -> None:
    first, second = await reset(ledger), await reset(ledger)

    assert first.request_id != second.request_id


async def test_a_reset_id_of_another_user_is_refused(ledger: Ledger) -> None:
    reset_id = str(uuid4())
    await reset(ledger, request_id=reset_id)

    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await reset(ledger, "bob", request_id=reset_id)

    assert from_call(refusal.value).reason == "REQUEST_ID_REUSED"


@pytest.mark.parametrize("clear_windows", [True, False])
async def test_a_reset_forgets_the_windows_when_it_is_told_to(
    ledger: Ledger, clear_windows: bool
) -> None:
    await ledger.admit_many(*(ask() for _ in range(10)))

    await reset(ledger, clear_windows=clear_windows)

    answer = await ledger.admit(ask())
    refused, admitted = pb.DECISION_RATE_LIMITED, pb.DECISION_ADMITTED
    assert answer.decision == (admitted if clear_windows else refused)


async def test_only_admins_reset(ledger: Ledger, keys: Keys) -> None:
    for token in (keys.user_token("alice"), keys.token("gateway"), keys.token("cache")):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ledger.stub.ResetQuota(
                pb.ResetQuotaRequest(user_id="alice", reason="x"), metadata=metadata(token)
            )
        assert refusal.value.code() == grpc.StatusCode.PERMISSION_DENIED


async def test_everyone_who_paid_for_a_generation_gets_it_back_once(ledger: Ledger) -> None:
    generation, other = str(uuid4()), str(uuid4())
    payers = [
        ask(f"user-{n}", outcome=pb.OUTCOME_CACHED, generation_id=generation) for n in range(7)
    ]
    await ledger.admit_many(
        *payers, ask("bystander", outcome=pb.OUTCOME_CACHED, generation_id=other)
    )
    request = pb.RefundRequest(generation_id=generation, reason=pb.REFUND_REASON_GOODWILL)

    first, again = [await ledger.stub.Refund(request, metadata=ledger.bearer) for _ in range(2)]

    assert {item.result for item in first.items} == {pb.REFUND_RESULT_REFUNDED}
    assert {item.request_id for item in first.items} == {one.request_id for one in payers}
    assert [item.user_id for item in first.items] == [f"user-{n}" for n in range(7)]
    assert not again.items
    assert [await ledger.balance(f"user-{n}") for n in range(7)] == 7 * [1000]
    assert await ledger.balance("bystander") == 999
    assert await ledger.drift() == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.RefundRequest(), "items"),
        (pb.RefundRequest(generation_id="x", reason=pb.REFUND_REASON_GOODWILL), "generation_id"),
        (pb.RefundRequest(generation_id=str(uuid4())), "reason"),
        (
            pb.RefundRequest(generation_id=str(uuid4()), reason=pb.REFUND_REASON_REPRICED),
            "reason",
        ),
        (pb.RefundRequest(generation_id=str(uuid4()), items=[refund_of(ask())]), "items"),
    ],
)
async def test_a_malformed_refund_names_its_field(
    ledger: Ledger, request_: pb.RefundRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ledger.stub.Refund(request_, metadata=ledger.bearer)

    error = from_call(refusal.value)
    assert (error.code, error.field) == ("INVALID_ARGUMENT", field)


async def charge_of(ledger: Ledger, request: pb.AdmitRequest, user: str = "") -> pb.Charge:
    wanted = pb.GetChargeRequest(user_id=user or request.user_id, request_id=request.request_id)
    return (await ledger.stub.GetCharge(wanted, metadata=ledger.bearer)).charge


async def test_a_charge_is_told_as_it_stands(ledger: Ledger) -> None:
    standing, repriced, failed = ask(page=1), ask(page=2), ask(page=3)
    await ledger.admit_many(standing, repriced, failed)
    await ledger.refund(
        refund_of(repriced, pb.REFUND_REASON_REPRICED, pb.OUTCOME_JOINED), refund_of(failed)
    )

    told = [await charge_of(ledger, request) for request in (standing, repriced, failed)]

    assert [(one.units, one.page.page, one.HasField("refunded_at")) for one in told] == [
        (1, 1, False),
        (0, 2, False),
        (0, 3, True),
    ]
    assert told[1].outcome == pb.OUTCOME_JOINED
    assert told[0].HasField("charged_at")


async def test_what_was_never_charged_to_this_user_is_not_found(ledger: Ledger) -> None:
    charged, void = ask(), ask()
    await ledger.admit(charged)
    await ledger.refund(refund_of(void, pb.REFUND_REASON_REQUEST_ABORTED))

    for request, user in ((charged, "bob"), (void, "alice"), (ask(), "alice")):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await charge_of(ledger, request, user)
        assert from_call(refusal.value).reason == "CHARGE_NOT_FOUND"
