"""Row 4: lease and complete no-op jobs through gRPC, fenced, results stored, against pgqueuer.

Bar: at least 1.2 times as many a second. The Cache is a process of its own; this one is the worker.
"""

import asyncio
import statistics
import sys
import time

import asyncpg

from tests.bench.no_op_worker import NoOpWorker, enqueue
from tests.bench.peer import running_pgqueuer
from tests.bench.stand import Stand, open_stand

JOBS, ROUNDS, BAR = 20_000, 3, 1.2


async def measure(stand: Stand, admin: "asyncpg.Connection[asyncpg.Record]") -> float:
    """Jobs a second through the Cache."""
    await enqueue(admin, JOBS)
    await admin.execute("VACUUM ANALYZE cache.generations")
    worker = NoOpWorker(await stand.channel("cache"), stand.bearer("worker"))
    began = time.perf_counter()
    await worker.drain(JOBS)
    seconds = time.perf_counter() - began
    ready = await admin.fetchval("SELECT count(*) FROM cache.generations WHERE status = 'ready'")
    assert (worker.accepted, ready % JOBS) == (JOBS, 0), "every job completed once"
    return JOBS / seconds


async def main() -> int:
    ours, theirs = [], []
    async with open_stand() as stand, running_pgqueuer(stand) as peer:
        await stand.start("cache")
        admin = await asyncpg.connect(stand.admin_url)
        for _ in range(ROUNDS):
            ours.append(await measure(stand, admin))
            [seconds] = await peer.measure(drain=JOBS)
            theirs.append(JOBS / seconds)
            print(f"  cache {ours[-1]:8,.0f}/s   pgqueuer {theirs[-1]:8,.0f}/s", flush=True)
        await admin.close()
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    verdict = "ok" if ratio >= BAR else "MISSED"
    print(f"row 4  queue: {ratio:.2f} x pgqueuer (bar {BAR}): {verdict}")
    return 0 if ratio >= BAR else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
