"""A service whose clock is wrong: only the database's clock counts."""

from pathlib import Path

import pytest

from tests.faults.house import open_house
from tests.faults.load import Load
from tests.programs import needs

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), Path())
FAST = {"LD_PRELOAD": str(LIBRARY), "FAKETIME": "+2h"}


@pytest.mark.faults
@pytest.mark.timeout(300)
@needs("faketime", package="faketime")
@pytest.mark.parametrize("name", ["registry", "quota-1", "cache-1", "worker-1"])
async def test_a_service_two_hours_fast_steals_no_lease_and_resets_no_window(name: str) -> None:
    async with open_house(environments={name: FAST}) as house:
        load = Load(house, seed=31)
        async with load.running():
            for _ in range(5):
                await load.recover()
        attempts = await house.rows(
            "SELECT generation_id FROM cache.generations WHERE attempts - released > 1"
        )
    assert attempts == []
