"""One call for everybody who wants the same at the same time."""

import asyncio

import pytest

from services.worker.shared_calls import SharedCalls
from tests.worker.waiting import until


class Work:
    def __init__(self) -> None:
        self.calls = 0
        self.stopped = 0
        self.gate = asyncio.Event()

    async def __call__(self) -> int:
        self.calls += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return self.calls


async def test_all_who_ask_meanwhile_get_the_same_answer_and_later_ones_a_new_one() -> None:
    shared, work = SharedCalls[str, int](), Work()
    asked = [asyncio.create_task(shared.run("a", work)) for _ in range(5)]
    other = asyncio.create_task(shared.run("b", work))
    await until(lambda: work.calls == 2)
    work.gate.set()

    assert len(set(await asyncio.gather(*asked))) == 1
    await other
    assert await shared.run("a", work) == 3


async def test_one_who_leaves_stops_nobody_else() -> None:
    shared, work = SharedCalls[str, int](), Work()
    first = asyncio.create_task(shared.run("a", work))
    second = asyncio.create_task(shared.run("a", work))
    await until(lambda: work.calls == 1)
    first.cancel()
    await asyncio.wait([first])
    work.gate.set()

    assert await second == 1
    assert work.stopped == 0


async def test_a_call_nobody_waits_for_is_stopped_before_the_last_has_left() -> None:
    shared, work = SharedCalls[str, int](), Work()
    only = asyncio.create_task(shared.run("a", work))
    await until(lambda: work.calls == 1)
    only.cancel()
    await asyncio.wait([only])

    assert work.stopped == 1
    work.gate.set()
    assert await shared.run("a", work) == 2


async def test_all_are_told_of_a_failure() -> None:
    shared = SharedCalls[str, int]()

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("no")

    asked = [asyncio.create_task(shared.run("a", fail)) for _ in range(3)]
    for one in asked:
        with pytest.raises(ValueError, match="no"):
            await one
