"""More watchers than anybody has: they are held, told, and cost what they cost at first."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from glossa.worker.v1 import worker_pb2
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from tests.faults.client import Client, Log
from tests.faults.house import open_house
from tests.suite import lecture

STREAMS = int(os.environ.get("FAULT_STREAMS") or 10_000)
CHANNELS = 50
QUIET = {"worker": {"heartbeat_seconds": 10, "model_call_seconds": 250}}
GREW_AT_MOST = 1.2


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Watcher:
    """Reads a stream that has nothing to tell but that it lives."""

    def __init__(self) -> None:
        self.heard = 0
        self.changed = asyncio.Event()

    async def watch(self, stub: WorkerServiceStub, generation_id: str, bearer: object) -> None:
        request = worker_pb2.WatchGenerationRequest(generation_id=generation_id, user_id="ada")
        async for _ in stub.WatchGeneration(request, metadata=bearer):  # type: ignore[arg-type]
            self.heard += 1
            self.changed.set()

    async def hear(self, count: int) -> None:
        while self.heard < count:
            self.changed.clear()
            await self.changed.wait()


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_ten_thousand_idle_streams_are_held_and_memory_stays_flat() -> None:
    async with open_house(settings=QUIET) as house, AsyncExitStack() as stack:
        house.model.gate.clear()
        client = Client(house, Log(), user="ada", seed="crowd")
        pdf_hash = await client.upload(lecture("Entropy never falls."), 1)
        asking = asyncio.create_task(client.get(pdf_hash, 1))
        await house.model.wait_for_calls(1)
        [(generation_id,)] = await house.rows("SELECT generation_id::text FROM cache.generations")
        address = house.stand.addresses["worker-1"]
        stubs: list[WorkerServiceStub] = [
            WorkerServiceStub(
                await stack.enter_async_context(
                    grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
                )
            )
            for _ in range(CHANNELS)
        ]
        watchers = [Watcher() for _ in range(STREAMS)]
        bearer = house.stand.bearer("gateway")
        watching = [
            asyncio.create_task(one.watch(stubs[number % CHANNELS], generation_id, bearer))
            for number, one in enumerate(watchers)
        ]
        pid = house.services["worker-1"].pid
        await asyncio.gather(*(one.hear(2) for one in watchers))
        before = resident_bytes(pid)
        await asyncio.gather(*(one.hear(5) for one in watchers))
        after = resident_bytes(pid)
        house.model.gate.set()
        await asyncio.gather(*watching)  # each is told the end
        await asking
    print(f"{STREAMS} streams: {before / 2**20:.0f} MiB, later {after / 2**20:.0f} MiB")
    assert after < before * GREW_AT_MOST
