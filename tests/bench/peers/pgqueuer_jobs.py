"""pgqueuer as the peer of rows 4 and 5; runs in its own environment and talks by lines of JSON.

Each line in is one order: {"drain": jobs} or {"pick_up": times}; each line out is seconds.
"""

# It is installed beside the peers only.
# mypy: disable-error-code="untyped-decorator"

import asyncio
import json
import sys
import time

import asyncpg
from pgqueuer.core.qm import QueueManager
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.domain.types import QueueExecutionMode
from pgqueuer.queries import Queries

BATCH = 100
# Long enough that nothing is still busy with the last one.
IDLE_SECONDS = 0.02
# The same question row 5 asks about our own tables.
COMMITTED = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8
FROM pgqueuer_log
WHERE job_id = $1 AND status = 'queued'
"""


async def drain(pool: asyncpg.Pool, jobs: int) -> list[float]:
    """Enqueue so many no-op jobs, then the seconds it takes to run them all."""
    queries = Queries(AsyncpgPoolDriver(pool))
    for _ in range(0, jobs, 1000):
        await queries.enqueue(["nothing"] * 1000, [None] * 1000, [0] * 1000)
    manager = QueueManager(Queries(AsyncpgPoolDriver(pool)))
    done = 0

    @manager.entrypoint("nothing")
    async def nothing(job: object) -> None:
        nonlocal done
        done += 1

    began = time.perf_counter()
    await manager.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    seconds = time.perf_counter() - began
    assert done == jobs, f"{done} of {jobs}"
    return [seconds]


async def pick_up(pool: asyncpg.Pool, times: int) -> list[float]:
    """From the commit of an enqueue to the job's function being called, in an idle system."""
    queries = Queries(AsyncpgPoolDriver(pool))
    manager = QueueManager(queries)
    picked: asyncio.Queue[float] = asyncio.Queue()

    @manager.entrypoint("something")
    async def something(job: object) -> None:
        picked.put_nowait(time.time())

    running = asyncio.create_task(manager.run())
    seconds = []
    for number in range(times + 5):
        [job_id] = await queries.enqueue("something", None)
        arrived = await picked.get()
        if number >= 5:  # the first ones start it up
            seconds.append(arrived - await pool.fetchval(COMMITTED, job_id))
        await asyncio.sleep(IDLE_SECONDS)
    manager.shutdown.set()
    await running
    return seconds


async def main(url: str) -> None:
    async with asyncpg.create_pool(url, min_size=4, max_size=10) as pool:
        await Queries(AsyncpgPoolDriver(pool)).install()
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            order = json.loads(line)
            if "drain" in order:
                seconds = await drain(pool, order["drain"])
            else:
                seconds = await pick_up(pool, order["pick_up"])
            print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
