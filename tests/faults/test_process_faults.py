"""Every process killed, told to go, or frozen in the middle of its work, one after another."""

import asyncio
import signal

import pytest

from tests.faults.house import LEASE_SECONDS, REPLICAS, House
from tests.faults.load import Load

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


async def test_every_process_killed_in_turn_loses_nothing(house: House) -> None:
    load = Load(house, seed=11)
    async with load.running():
        for name in REPLICAS:
            await end(house, name, signal.SIGKILL)
            await load.recover()
    print(load.summary())


async def test_a_rolling_restart_of_everything_loses_nothing(house: House) -> None:
    load = Load(house, seed=12)
    async with load.running():
        for name in REPLICAS:
            await end(house, name, signal.SIGTERM)
            await load.recover()
    print(load.summary())


async def test_every_process_frozen_past_the_lease_and_thawed_changes_nothing(
    house: House,
) -> None:
    load = Load(house, seed=13)
    async with load.running():
        for name in REPLICAS:
            house.send_signal(name, signal.SIGSTOP)
            await asyncio.sleep(2 * LEASE_SECONDS)  # the fault itself, not a wait for something
            house.send_signal(name, signal.SIGCONT)
            await load.recover()
    print(load.summary())


async def end(house: House, name: str, number: signal.Signals) -> None:
    """Return when another process serves in its place."""
    before = house.services[name].pid
    house.send_signal(name, number)
    async with asyncio.timeout(60):
        while house.services[name].pid == before:  # noqa: ASYNC110 - its keeper has no event
            await asyncio.sleep(0.05)
    await house.until_serving(name)
