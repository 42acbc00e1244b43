"""Each wire in every weather: calls end by themselves, and the same id gets the same answer."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.faults.fault_proxy import FAIR
from tests.faults.house import House, open_house, wire_names
from tests.faults.load import Load
from tests.faults.schedule import WEATHERS

# How long each weather lasts.
SPELL_SECONDS = 1.5
# A call ends by its deadline and a second; the rest is for a machine that others use too.
LATE_SECONDS = 5.0

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
async def one_house() -> AsyncIterator[House]:
    async with open_house() as house:
        yield house


@pytest.mark.parametrize("wire", wire_names())
async def test_a_wire_in_any_weather_loses_nothing(one_house: House, wire: str) -> None:
    load = Load(one_house, seed=wire_names().index(wire), users=3)
    async with load.running():
        for weather in WEATHERS:
            one_house.wires[wire].set(weather)
            await asyncio.sleep(SPELL_SECONDS)
            one_house.wires[wire].set(FAIR)
            await load.recover()
    print(wire, load.summary())
    assert load.log.late_seconds < LATE_SECONDS
