"""Traces the model has found and that are too rare to wait for, played step by step."""

from collections.abc import Callable

import pytest

from tests.protocol.bugs import Bug, ProtocolBroken
from tests.protocol.cache_model import Ask
from tests.protocol.model import Task, World

Trace = Callable[[World], None]

ALICE, BOB = Ask(1, "alice", "page-1"), Ask(2, "bob", "page-1")


def begin(world: World, ask: Ask, *, steps: int) -> Task:
    """Call, and let this many transactions commit."""
    task = world.ask(ask)
    assert task is not None
    for _ in range(steps):
        world.go_on(task)
    return task


def make_ready(world: World, ask: Ask) -> None:
    world.finish(begin(world, ask, steps=0))
    lease = world.lease()
    assert lease is not None
    world.finish(world.start(world.calls.complete(lease)))


def refused_holder_comes_back(world: World) -> None:
    """A holder is refused, its intent taken over and charged; then it wants to take it away."""
    former = begin(world, ALICE, steps=3)
    world.grow_older(ALICE.request_id)
    present = begin(world, ALICE, steps=3)
    world.deliver(world.sent_by(former), full=True)
    world.deliver(world.sent_by(present))
    world.finish(former)
    world.finish(present)


def hit_meets_the_charge_of_its_twin(world: World) -> None:
    """A slow call finds the page ready, and its id charged for an intent whose call has died."""
    slow = begin(world, ALICE, steps=1)
    twin = begin(world, ALICE, steps=4)
    world.crash(twin)
    make_ready(world, BOB)
    world.finish(slow)


def hit_meets_the_intent_of_its_twin(world: World) -> None:
    """A call is charged for a hit while a twin that has died left an intent with the same id."""
    twin = begin(world, ALICE, steps=2)
    hit = begin(world, ALICE, steps=1)
    make_ready(world, BOB)
    world.go_on(twin)
    world.crash(twin)
    world.finish(hit)


TRACES = [
    (Bug.R6_NONCE_UNCHECKED, refused_holder_comes_back),
    (Bug.HIT_ANSWERS_FOR_ITS_TWIN, hit_meets_the_charge_of_its_twin),
    (Bug.ABORTED_HIDES_A_HIT, hit_meets_the_intent_of_its_twin),
]


@pytest.mark.parametrize(("bug", "trace"), TRACES, ids=lambda value: getattr(value, "name", ""))
def test_a_rare_trace_breaks_only_the_broken_protocol(bug: Bug, trace: Trace) -> None:
    play(trace, World())

    with pytest.raises(ProtocolBroken):
        play(trace, World(bug))


def play(trace: Trace, world: World) -> None:
    trace(world)
    world.settle(works=True, late_messages=False)


def test_a_charge_repeated_after_its_refusal_was_heard_is_the_known_limit() -> None:
    """FINDINGS.md, F2: nobody is left to notice it. When this fails, the limit is gone."""
    world = World(late_duplicates=True)
    call = begin(world, ALICE, steps=3)
    world.deliver(world.sent_by(call), full=True, again=True)

    with pytest.raises(ProtocolBroken, match="every charge buys a result"):
        world.settle(works=True, late_messages=False)
