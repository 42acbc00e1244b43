"""Row 12: charged hits with two Cache and two Quota processes, against one of each.

Bar: 1.5 times as many where there are cores for them. One pair, Postgres and the load take up two
cores already; with fewer than four the figure is shown and not judged.
"""

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.bench.hits import EXPLAIN_PAGE, Hits, load
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import UNLIMITED, open_stand

ROUNDS, REQUESTS, WARM_UP, BAR = 3, 8_000, 2_000, 1.5
CORES_NEEDED = 4


async def run() -> list[Figure]:
    single, double = [], []
    async with open_stand() as stand:
        await stand.start_all({"quota": UNLIMITED})
        await stand.start("quota", UNLIMITED, name="quota-2")
        await stand.start("cache", {"quota_address": stand.addresses["quota-2"]}, name="cache-2")
        with tempfile.TemporaryDirectory() as folder:
            hits = Hits(stand, Path(folder))
            await hits.open()

            async def ask(cache: str, requests: int) -> float:
                asked = hits.write_requests(requests, own_ids=False)
                done = await load(stand.addresses[cache], EXPLAIN_PAGE, asked, token=hits.token)
                return done.per_second

            for cache in ("cache", "cache-2"):
                await ask(cache, WARM_UP)
            for _ in range(ROUNDS):
                single.append(await ask("cache", REQUESTS))
                halves = (ask(cache, REQUESTS // 2) for cache in ("cache", "cache-2"))
                double.append(sum(await asyncio.gather(*halves)))
    cores = os.cpu_count() or 1
    return [
        Figure(
            row=12,
            what=f"two Cache + two Quota on {cores} cores",
            ours=f"{max(double):,.0f}/s",
            reference=f"one each {max(single):,.0f}/s",
            value=median_ratio(double, single),
            unit="x",
            bar=BAR,
            at_least=True,
            unjudged=f"{cores} cores" if cores < CORES_NEEDED else "",
        )
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
