"""The database dies, moves, fills up or is crowded: what was acknowledged is there."""

import asyncio
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub

from services.runtime.status import from_call
from tests.e2e.conftest import reachable_folder
from tests.faults.client import CALL_SECONDS
from tests.faults.house import House, open_house
from tests.faults.load import Load
from tests.faults.standby import Pair

CRASHES = 8


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = reachable_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(300)
async def test_failing_over_to_a_synchronous_standby_loses_nothing_acknowledged(
    folder: Path,
) -> None:
    pair = Pair(folder)
    async with open_house(postgres=pair) as house:
        load = Load(house, seed=1)
        async with load.running():
            await load.recover()
            await until_answered(load, 50)
            address = await pair.fail_over()
            house.stand.admin_url = pair.standby.url_of("glossa")
            house.move_database(address)
            await load.recover()
        print(load.summary())
        # Over the wires stands the new one; the old one comes back and believes itself first.
        await assert_nothing_is_acknowledged_by(await pair.return_the_old_one(), house)


async def until_answered(load: Load, count: int) -> None:
    async with asyncio.timeout(60):
        while len(load.log.acknowledged) < count:  # noqa: ASYNC110 - a list gives no event
            await asyncio.sleep(0.05)


async def assert_nothing_is_acknowledged_by(address: str, house: House) -> None:
    new = house.wires["quota>postgres"].targets[0]
    house.move_database(address)
    [(pdf_hash, user)] = await house.rows(
        "SELECT content_hash, user_id FROM registry.files WHERE user_id = 'probe'"
    )
    request = cache_pb2.ExplainPageRequest(user_id=user, pdf_hash=pdf_hash, page=1, locale="en")
    stub: CacheServiceStub = CacheServiceStub(house.front("cache-1"))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.ExplainPage(
            request, metadata=house.stand.bearer("gateway"), timeout=CALL_SECONDS
        )
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert from_call(refused.value).is_ours
    house.move_database(new)


@pytest.mark.faults
@pytest.mark.timeout(400)
async def test_a_database_that_crashes_every_other_second_loses_nothing(house: House) -> None:
    load, dice = Load(house, seed=2), random.Random(2)
    async with load.running():
        for _ in range(CRASHES):
            with suppress(OSError):  # it is being started again
                house.crash_database(dice.choice((signal.SIGKILL, signal.SIGQUIT)))
            await asyncio.sleep(dice.uniform(1, 2))
        await load.recover()
    print(load.summary())
