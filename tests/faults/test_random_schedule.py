"""Random faults under load: what is acknowledged stays true, everybody is served in the end."""

import os
import random

import pytest

from tests.faults.house import open_house
from tests.faults.schedule import Schedule

QUICK_SEED, QUICK_SECONDS = 20261118, 30.0
SEED = int(os.environ.get("SEED") or random.randrange(10**6))
MINUTES = float(os.environ.get("FAULT_MINUTES") or 8)


async def survive(seed: int, seconds: float) -> None:
    async with open_house() as house:
        schedule = Schedule(house, seed=seed, seconds=seconds)
        await schedule.run()
        assert schedule.load.log.acknowledged


@pytest.mark.timeout(600)
async def test_a_short_schedule_of_faults_loses_nothing_that_was_acknowledged() -> None:
    await survive(QUICK_SEED, QUICK_SECONDS)


@pytest.mark.faults
@pytest.mark.timeout(MINUTES * 60 + 600)
async def test_a_long_schedule_of_faults_loses_nothing_that_was_acknowledged() -> None:
    await survive(SEED, MINUTES * 60)
