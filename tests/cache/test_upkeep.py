"""What a replica does by itself: results that went out of service unheard are not served."""

from collections.abc import Mapping
from uuid import uuid4

import pytest

from services.cache.config import Config
from services.cache.memory import ReadyMemory, ReadyResult
from services.cache.queue import JobBell
from services.cache.queue_store import QueueStore
from services.cache.retirement_store import RetirementStore
from services.cache.upkeep import Upkeep
from services.runtime.database import open_database
from tests.cache.test_recovery import key_of


@pytest.mark.parametrize(("gap_seconds", "remembered"), [(1.0, True), (16.0, False)])
async def test_after_a_long_gap_nothing_that_was_remembered_is_believed(
    databases: Mapping[str, str], gap_seconds: float, remembered: bool
) -> None:
    ready, clocks = ReadyMemory(most_bytes=10_000), Config.model_construct().clocks()
    key = key_of("a" * 64, model="m", prompt_version="1")
    async with open_database(databases["cache"], application_name="test") as database:
        keeper = Upkeep(
            queue=QueueStore(database, clocks),
            retirements=RetirementStore(database, clocks),
            ready=ready,
            bell=JobBell(),
            poll=clocks.lease,
        )
        ready.add(key, ReadyResult(generation_id=uuid4(), model="m", prepared=b"x"))
        keeper._looked_at -= gap_seconds

        await keeper.forget_retired()

    assert (ready.get(key) is not None) is remembered
