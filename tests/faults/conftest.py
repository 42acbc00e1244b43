"""A house for each test of this folder that wants one."""

from collections.abc import AsyncIterator

import pytest

from tests.faults.house import House, open_house


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as house:
        yield house
