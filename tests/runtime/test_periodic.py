"""A periodic duty: runs at once, when woken, and on after a failure."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from services.runtime.periodic import periodic

NEVER = timedelta(days=1)


class Duty:
    def __init__(self) -> None:
        self.runs: asyncio.Queue[int] = asyncio.Queue()
        self.count = 0

    async def run_once(self) -> None:
        self.count += 1
        self.runs.put_nowait(self.count)
        if self.count == 1:
            raise ZeroDivisionError


async def test_a_duty_runs_at_once_and_when_woken_even_after_a_failure() -> None:
    duty = Duty()
    async with periodic("test", every=NEVER, run_once=duty.run_once) as handle:
        assert await duty.runs.get() == 1
        handle.wake()
        assert await duty.runs.get() == 2


async def test_a_duty_runs_again_by_itself_and_ends_with_its_block() -> None:
    duty = Duty()
    async with periodic("test", every=timedelta(milliseconds=1), run_once=duty.run_once):
        while await duty.runs.get() < 5:
            pass
    assert "test" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_duty_that_swallows_its_cancellation_ends_all_the_same() -> None:
    started, swallowed = asyncio.Event(), asyncio.Event()

    async def deaf_at_first() -> None:
        started.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        swallowed.set()
        await asyncio.Event().wait()

    async with periodic("deaf", every=timedelta(hours=1), run_once=deaf_at_first):
        await started.wait()

    assert swallowed.is_set()
