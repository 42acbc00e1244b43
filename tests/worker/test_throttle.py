"""How many calls run at a time: learned from the model, and its pauses hold for everybody."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from services.worker.model import (
    ModelError,
    ModelPaused,
    ModelQuotaExhausted,
    ModelRateLimited,
    ModelUnavailable,
)
from services.worker.throttle import Pace, Throttle
from tests.worker.waiting import until

PAUSE = timedelta(minutes=15)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
A_MOMENT = timedelta(milliseconds=20)


class Clock:
    """Stands still unless told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def pace() -> Pace:
    return Pace(most=8, quota_pause=PAUSE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def throttle(pace: Pace, clock: Callable[[], float], longest_wait: timedelta = HOUR) -> Throttle:
    return Throttle(pace, clock=clock, longest_wait=longest_wait)


async def fail(slots: Throttle, error: ModelError) -> None:
    with pytest.raises(type(error)):
        async with slots.slot():
            raise error


def test_too_many_halves_the_limit_once_for_all_calls_that_were_under_way(pace: Pace) -> None:
    for _ in range(3):
        pace.failed(ModelRateLimited("429"), began_at=1.0, now=2.0)

    assert pace.limit == 4
    pace.failed(ModelRateLimited("429"), began_at=3.0, now=4.0)
    assert pace.limit == 2


def test_the_limit_never_falls_below_one_call(pace: Pace) -> None:
    for turn in range(10):
        pace.failed(ModelRateLimited("429"), began_at=float(turn), now=float(turn))

    assert pace.limit == 1


def test_success_raises_the_limit_step_by_step_up_to_the_most(pace: Pace) -> None:
    pace.failed(ModelRateLimited("429"), began_at=1.0, now=1.0)
    limits = []
    for _ in range(40):
        pace.succeeded(began_at=2.0)
        limits.append(pace.limit)

    assert limits[0] == 4  # a fraction of a call at a time
    assert limits.index(5) >= 3
    assert limits[-1] == 8


def test_other_trouble_does_not_change_the_limit(pace: Pace) -> None:
    pace.failed(ModelUnavailable("500"), began_at=1.0, now=1.0)

    assert (pace.limit, pace.pause_left(1.0)) == (8, 0.0)


def test_the_longest_pause_that_was_asked_for_counts(pace: Pace) -> None:
    pace.failed(ModelRateLimited("429", retry_after=9 * SECOND), began_at=1.0, now=1.0)
    pace.failed(ModelUnavailable("503", retry_after=2 * SECOND), began_at=1.0, now=2.0)

    assert pace.pause_left(2.0) == 8.0


def test_a_used_up_account_is_closed_until_a_call_made_afterwards_succeeds(pace: Pace) -> None:
    pace.failed(ModelQuotaExhausted("429"), began_at=1.0, now=5.0)

    assert (pace.account_is_used_up, pace.limit) == (True, 1)
    assert pace.pause_left(5.0) == PAUSE.total_seconds()
    pace.succeeded(began_at=4.0)  # was under way: it proves nothing
    assert pace.account_is_used_up
    pace.succeeded(began_at=1_000.0)
    assert not pace.account_is_used_up


async def test_no_more_calls_are_under_way_than_the_limit_allows(pace: Pace) -> None:
    slots, under_way, most = throttle(pace, asyncio.get_running_loop().time), 0, 0
    pace.failed(ModelRateLimited("429"), began_at=0.0, now=0.0)
    gate = asyncio.Event()

    async def call() -> None:
        nonlocal under_way, most
        async with slots.slot():
            under_way += 1
            most = max(most, under_way)
            await gate.wait()
            under_way -= 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(call())
        await until(lambda: under_way == 4)
        gate.set()

    assert most == 4


async def test_who_came_first_is_served_first(clock: Clock) -> None:
    """Even before one that comes at the very moment in which a slot becomes free."""
    slots, served = throttle(Pace(most=1, quota_pause=PAUSE), clock), list[str]()

    async def call(name: str) -> None:
        async with slots.slot():
            served.append(name)

    async with AsyncExitStack() as busy, asyncio.TaskGroup() as tasks:
        await busy.enter_async_context(slots.slot())
        for name in ("first", "second"):
            tasks.create_task(call(name))
        await asyncio.sleep(0)
        await busy.aclose()
        await call("last")

    assert served == ["first", "second", "last"]


async def test_a_pause_one_call_was_told_holds_for_all_of_the_process(
    pace: Pace, clock: Clock
) -> None:
    slots = throttle(pace, clock, A_MOMENT)
    await fail(slots, ModelRateLimited("429", retry_after=30 * SECOND))

    for _ in range(3):
        with pytest.raises(ModelPaused):
            async with slots.slot():
                pytest.fail("the model was asked during the pause")
    clock.now += 30
    async with slots.slot():
        pass


async def test_who_does_not_get_a_turn_is_told_that_nothing_was_asked(
    pace: Pace, clock: Clock
) -> None:
    slots = throttle(Pace(most=1, quota_pause=PAUSE), clock, A_MOMENT)
    async with slots.slot():
        with pytest.raises(ModelPaused):
            async with slots.slot():
                pytest.fail("there was no room")
    async with slots.slot():
        pass


async def test_a_short_pause_is_waited_for(pace: Pace) -> None:
    loop = asyncio.get_running_loop()
    slots = throttle(pace, loop.time)
    await fail(slots, ModelRateLimited("429", retry_after=timedelta(milliseconds=50)))
    resumes_at = loop.time() + pace.pause_left(loop.time())

    async with slots.slot():
        assert loop.time() >= resumes_at


async def test_those_who_wait_when_a_pause_begins_wait_for_its_end(
    pace: Pace, clock: Clock
) -> None:
    slots, asked_at = throttle(pace, clock), list[float]()

    async def call() -> None:
        async with slots.slot():
            asked_at.append(clock.now)

    async def use_up(tasks: asyncio.TaskGroup) -> None:
        async with slots.slot():
            for _ in range(3):
                tasks.create_task(call())
            await asyncio.sleep(0)
            raise ModelQuotaExhausted("429")

    async with asyncio.TaskGroup() as tasks, AsyncExitStack() as busy:
        for _ in range(7):
            await busy.enter_async_context(slots.slot())
        with pytest.raises(ModelQuotaExhausted):
            await use_up(tasks)
        for _ in range(10):
            await asyncio.sleep(0)
        assert asked_at == []
        clock.now += PAUSE.total_seconds()

    assert asked_at == [clock.now] * 3


async def test_after_the_pause_of_a_used_up_account_one_probe_decides(
    pace: Pace, clock: Clock
) -> None:
    slots, calls = throttle(pace, clock), 0
    await fail(slots, ModelQuotaExhausted("429"))
    clock.now += PAUSE.total_seconds()
    probe, gate = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        nonlocal calls
        async with slots.slot():
            calls += 1
            probe.set()
            await gate.wait()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(call())
        await probe.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert calls == 1
        gate.set()

    assert calls == 5


async def test_a_call_that_is_given_up_gives_its_slot_back(pace: Pace, clock: Clock) -> None:
    slots, inside = throttle(Pace(most=1, quota_pause=PAUSE), clock), asyncio.Event()

    async def hang() -> None:
        async with slots.slot():
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await inside.wait()
    task.cancel()

    async with slots.slot():
        assert task.done()
