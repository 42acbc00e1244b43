"""The deadline of an attempt: counted from now, lengthened while it runs, never shortened."""

import asyncio
from datetime import timedelta

import pytest

from services.worker.deadline import Deadline

HOUR = timedelta(hours=1)
NOW = timedelta()
SOON = timedelta(milliseconds=20)


async def until_after(moment: timedelta) -> None:
    """Returns when every timer for this moment, set before, has gone off."""
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(2 * moment.total_seconds(), passed.set)
    await passed.wait()


@pytest.mark.parametrize("time_left", [SOON, NOW, -HOUR])
async def test_what_takes_longer_is_ended(time_left: timedelta) -> None:
    deadline = Deadline(time_left)

    with pytest.raises(TimeoutError):
        async with deadline.running():
            await asyncio.Event().wait()


async def test_what_ends_in_time_is_left_alone() -> None:
    async with Deadline(HOUR).running():
        await until_after(SOON)


async def test_more_time_may_be_granted_before_it_runs() -> None:
    deadline = Deadline(NOW)
    deadline.grant(HOUR)

    async with deadline.running():
        await until_after(SOON)


async def test_more_time_may_be_granted_while_it_runs() -> None:
    deadline = Deadline(SOON)

    async with deadline.running():
        deadline.grant(HOUR)
        await until_after(SOON)


async def test_less_time_than_was_told_before_changes_nothing() -> None:
    deadline = Deadline(HOUR)

    async with deadline.running():
        for time_left in (SOON, NOW, -HOUR):
            deadline.grant(time_left)
        await until_after(SOON)


async def test_a_grant_that_comes_too_late_is_no_trouble() -> None:
    deadline = Deadline(NOW)

    async def attempt() -> None:
        async with deadline.running():
            try:
                await asyncio.Event().wait()
            finally:
                deadline.grant(HOUR)  # while it is being ended

    with pytest.raises(TimeoutError):
        await attempt()
    deadline.grant(HOUR)
