"""The real servicers, stopped before and after every commit: work and charge, or neither.

Each test walks through all transactions of one call. After every stop the caller either retries
with the same request_id, or never comes back; in the end the SQL invariants hold.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import grpc
import pytest
from glossa.quota.v1 import quota_pb2

from tests.protocol.conftest import Ground, new_id
from tests.protocol.edge import FAULTS
from tests.protocol.failpoints import MOMENTS

Prepare = Callable[[Ground], Awaitable[tuple[str, str]]]

GENERATED, JOINED, CACHED = 3, 1, 1


async def cold(ground: Ground) -> tuple[str, str]:
    """Nobody has asked for the page."""
    return await ground.document("alice"), new_id()


async def join(ground: Ground) -> tuple[str, str]:
    """Somebody else has, and it is being made."""
    pdf_hash = await ground.document("alice", "bob")
    await ground.caller.insist("bob", pdf_hash, new_id())
    return pdf_hash, new_id()


async def hit(ground: Ground) -> tuple[str, str]:
    """It is ready."""
    pdf_hash, request_id = await join(ground)
    await ground.worker.complete(await ground.worker.lease())
    return pdf_hash, request_id


async def replay(ground: Ground) -> tuple[str, str]:
    """The same request has been answered before."""
    pdf_hash, request_id = await cold(ground)
    await ground.caller.insist("alice", pdf_hash, request_id)
    return pdf_hash, request_id


CALLS = [(cold, GENERATED, 4), (join, JOINED, 4), (hit, CACHED, 1), (replay, GENERATED, 2)]

NAMES = [prepare.__name__ for prepare, _, _ in CALLS]


async def crashes(
    ground: Ground, prepare: Prepare, asked: list[tuple[str, str]]
) -> AsyncIterator[None]:
    """Stop one call after the other, each a transaction later, until one gets through."""
    for moment in MOMENTS:
        for boundary in count():
            asked.append(await prepare(ground))
            ground.failpoints.arm(boundary, moment)
            if not await ground.crash(ground.caller.ask("alice", *asked[-1])):
                break
            yield


@pytest.mark.parametrize(("prepare", "price", "least"), CALLS, ids=NAMES)
async def test_a_caller_who_retries_after_a_crash_is_served_and_charged_once(
    ground: Ground, prepare: Prepare, price: int, least: int
) -> None:
    asked: list[tuple[str, str]] = []
    stopped = 0
    async for _ in crashes(ground, prepare, asked):
        stopped += 1
        answer = await ground.caller.insist("alice", *asked[-1])
        again = await ground.caller.insist("alice", *asked[-1])

        assert answer.generation_id == again.generation_id
        assert again.outcome == quota_pb2.OUTCOME_REPLAYED
        assert await ground.ledger(asked[-1][1]) == ("charged", price)
    assert stopped >= least * len(MOMENTS)


@pytest.mark.parametrize(("prepare", "price", "least"), CALLS, ids=NAMES)
async def test_a_caller_who_never_comes_back_has_work_and_charge_or_neither(
    ground: Ground, prepare: Prepare, price: int, least: int
) -> None:
    asked: list[tuple[str, str]] = []
    stopped = 0
    async for _ in crashes(ground, prepare, asked):
        stopped += 1
    await ground.clear_up()

    assert stopped >= least * len(MOMENTS)
    for _, request_id in asked:
        assert await ground.ledger(request_id) in (None, ("void", 0), *ended(price))


def ended(price: int) -> tuple[tuple[str, int], ...]:
    """The row keeps the price it was charged at, also when it is given back."""
    return ("charged", price), ("refunded", price)


@pytest.mark.parametrize(("prepare", "price", "least"), CALLS, ids=NAMES)
async def test_whatever_happens_to_the_charge_on_the_wire_it_lands_once(
    ground: Ground, prepare: Prepare, price: int, least: int
) -> None:
    for fault in FAULTS:
        pdf_hash, request_id = await prepare(ground)
        ground.edge.break_next("AdmitMany", fault)

        answer = await ground.caller.insist("alice", pdf_hash, request_id)
        await ground.edge.deliver_late()

        assert ground.edge.fired.is_set()
        assert await ground.ledger(request_id) == ("charged", price)
        again = await ground.caller.insist("alice", pdf_hash, request_id)
        assert again.generation_id == answer.generation_id


@pytest.mark.parametrize("fault", ["lost", "answer_lost", "late"])
async def test_a_charge_nobody_came_back_for_is_undone_even_if_it_arrives_last(
    ground: Ground, fault: str
) -> None:
    pdf_hash, request_id = await cold(ground)
    ground.edge.break_next("AdmitMany", fault)
    with pytest.raises(grpc.aio.AioRpcError, match="quota"):
        await ground.caller.ask("alice", pdf_hash, request_id)

    await ground.clear_up()
    await ground.edge.deliver_late()

    left = ("refunded", GENERATED) if fault == "answer_lost" else ("void", 0)
    assert await ground.ledger(request_id) == left
    with pytest.raises(grpc.aio.AioRpcError, match="new request_id"):
        await ground.caller.ask("alice", pdf_hash, request_id)
