"""Row 4: lease and complete no-op jobs through gRPC, fenced, results stored, against pgqueuer.

Bar: at least 1.2 times as many a second. The Cache is a process of its own; this one is the worker.
"""

import statistics
import sys
import time

import asyncpg

from tests.bench.no_op_worker import NoOpWorker, enqueue
from tests.bench.peer import running_pgqueuer
from tests.bench.report import Figure, median_ratio, standalone
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


async def run() -> list[Figure]:
    ours, theirs = [], []
    async with open_stand() as stand, running_pgqueuer(stand) as peer:
        await stand.start("cache")
        admin = await asyncpg.connect(stand.admin_url)
        for _ in range(ROUNDS):
            ours.append(await measure(stand, admin))
            [seconds] = await peer.measure(drain=JOBS)
            theirs.append(JOBS / seconds)
        await admin.close()
    return [
        Figure(
            row=4,
            what="lease and complete no-op jobs, fenced, results stored",
            ours=f"{statistics.median(ours):,.0f}/s",
            reference=f"pgqueuer {statistics.median(theirs):,.0f}/s",
            value=median_ratio(ours, theirs),
            unit="x",
            bar=BAR,
            at_least=True,
        )
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
