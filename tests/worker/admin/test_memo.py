"""Many open pages ask once, also of a service that does not answer."""

import asyncio
import time

import pytest

from services.runtime.errors import DependencyDown
from services.worker.admin.memo import MOST_FAILED_SECONDS, Memo


class Asked:
    """Something that answers, or fails, when it is told to."""

    def __init__(self) -> None:
        self.times = 0
        self.fails = False
        self.gate = asyncio.Event()

    async def __call__(self) -> int:
        self.times += 1
        await self.gate.wait()
        if self.fails:
            raise DependencyDown("it does not answer", reason="CACHE_UNAVAILABLE")
        return self.times


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr("services.worker.admin.memo.time.monotonic", lambda: self.now)


async def test_those_who_wait_share_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(monkeypatch), Asked()
    memo = Memo(asked, fresh_seconds=60)
    asked.fails = True
    tabs = [asyncio.create_task(memo.get()) for _ in range(5)]
    await asyncio.sleep(0)
    asked.gate.set()
    answers = await asyncio.gather(*tabs, return_exceptions=True)
    with pytest.raises(DependencyDown):
        await memo.get()

    assert [type(answer) for answer in answers] == [DependencyDown] * 5
    assert asked.times == 1

    asked.fails = False
    clock.now += MOST_FAILED_SECONDS + 1
    assert await memo.get() == 2


async def test_an_answer_is_remembered_while_it_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = Clock(monkeypatch), Asked()
    asked.gate.set()
    memo = Memo(asked, fresh_seconds=60)

    assert await memo.get() == 1
    clock.now += 59
    assert await memo.get() == 1
    clock.now += 2
    assert await memo.get() == 2


async def test_who_leaves_takes_nothing_from_the_others() -> None:
    asked = Asked()
    memo = Memo(asked, fresh_seconds=60)
    first, second = asyncio.create_task(memo.get()), asyncio.create_task(memo.get())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    asked.gate.set()

    assert first.cancelled()
    assert await second == 1
