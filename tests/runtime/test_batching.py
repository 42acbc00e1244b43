"""Natural batching: alone when idle, together under load."""

import asyncio
from collections.abc import Sequence

import pytest

from services.runtime import request
from services.runtime.batching import Batcher
from services.runtime.errors import DependencyDown


class Line:
    """A slow line that sends a batch whenever it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Semaphore(0)
        self.fail = False
        self.deadlines: list[float | None] = []

    async def send(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        self.deadlines.append(request.seconds_left())
        await self.open.acquire()
        if self.fail:
            raise DependencyDown("away")
        return [item * 10 for item in items]


async def submit(batcher: Batcher[int, int], *items: int) -> list["asyncio.Task[int]"]:
    tasks = [asyncio.create_task(batcher.submit(item)) for item in items]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_what_comes_while_one_is_under_way_travels_together() -> None:
    line = Line()
    batcher: Batcher[int, int] = Batcher(line.send)
    first = await submit(batcher, 1)
    rest = await submit(batcher, 2, 3, 4)

    line.open.release()
    line.open.release()
    results = await asyncio.gather(*first, *rest)

    assert line.batches == [[1], [2, 3, 4]]
    assert results == [10, 20, 30, 40]


async def test_who_is_told_and_asks_again_at_once_travels_with_those_who_wait() -> None:
    line = Line()
    batcher: Batcher[int, int] = Batcher(line.send)

    async def ask_twice() -> int:
        await batcher.submit(1)
        return await batcher.submit(2)

    twice = asyncio.create_task(ask_twice())
    await submit(batcher)  # the first one is on its way
    rest = await submit(batcher, 3)
    line.open.release()
    line.open.release()
    await asyncio.gather(twice, *rest)

    assert line.batches == [[1], [3, 2]]


async def test_a_batch_has_a_largest_size() -> None:
    line = Line()
    batcher: Batcher[int, int] = Batcher(line.send, max_batch=2)
    tasks = await submit(batcher, 1, 2, 3, 4, 5)

    for _ in range(3):
        line.open.release()
    await asyncio.gather(*tasks)

    assert [len(batch) for batch in line.batches] == [2, 2, 1]


async def test_a_failed_batch_fails_its_own_and_the_next_goes_on() -> None:
    line = Line()
    line.fail = True
    batcher: Batcher[int, int] = Batcher(line.send)
    [lost] = await submit(batcher, 1)
    line.open.release()
    with pytest.raises(DependencyDown):
        await lost

    line.fail = False
    line.open.release()
    assert await batcher.submit(2) == 20


async def test_too_many_waiting_are_turned_away_at_once() -> None:
    line = Line()
    batcher: Batcher[int, int] = Batcher(line.send, max_waiting=2)
    tasks = await submit(batcher, 1)
    tasks += await submit(batcher, 2, 3)

    with pytest.raises(DependencyDown) as refusal:
        await batcher.submit(4)

    assert refusal.value.reason == "OVERLOADED"
    line.open.release()
    line.open.release()
    await asyncio.gather(*tasks)


async def test_who_went_away_is_not_sent_for() -> None:
    line = Line()
    batcher: Batcher[int, int] = Batcher(line.send)
    [first] = await submit(batcher, 1)
    gone, stays = await submit(batcher, 2, 3)
    gone.cancel()

    line.open.release()
    line.open.release()

    assert await stays == 30
    assert await first == 10
    assert line.batches == [[1], [3]]


async def test_a_batch_does_not_inherit_the_deadline_of_who_came_first() -> None:
    line = Line()
    batcher: Batcher[int, int] = Batcher(line.send)
    line.open.release()

    async def hurried() -> int:
        request.set_deadline(0.001)
        return await batcher.submit(1)

    await asyncio.create_task(hurried())

    assert line.deadlines == [None]
