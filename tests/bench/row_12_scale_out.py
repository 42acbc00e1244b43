"""Row 12: charged hits with two Cache and two Quota processes, against one of each.

Bar: 1.5 times as many where there are cores for them. One pair, Postgres and the load take up two
cores already; with fewer than four the figure is shown and not judged.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.hits import CONNECTIONS, EXPLAIN_PAGE, IN_FLIGHT, Hits, load
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import UNLIMITED, open_stand

ROUNDS, REQUESTS, WARM_UP, BAR = 3, 8_000, 2_000, 1.5
CORES_NEEDED = 4
BOTH = ("cache", "cache-2")


async def run() -> list[Figure]:
    single, double = [], []
    async with open_stand() as stand:
        await stand.start_all({"quota": UNLIMITED})
        await stand.start("quota", UNLIMITED, name="quota-2")
        await stand.start("cache", {"quota_address": stand.addresses["quota-2"]}, name="cache-2")
        with tempfile.TemporaryDirectory() as folder:
            hits = Hits(stand, Path(folder))
            await hits.open()

            async def per_second(caches: Sequence[str], requests: int) -> float:
                """All requests by the time until the last is answered; as many in flight always."""
                share = len(caches)
                asked = [hits.write_requests(requests // share, own_ids=False) for _ in caches]
                began = time.perf_counter()
                await asyncio.gather(
                    *(
                        load(
                            stand.addresses[cache],
                            EXPLAIN_PAGE,
                            messages,
                            token=hits.token,
                            in_flight=IN_FLIGHT // share,
                            connections=CONNECTIONS // share,
                        )
                        for cache, messages in zip(caches, asked, strict=True)
                    )
                )
                return requests / (time.perf_counter() - began)

            await per_second(BOTH, WARM_UP)
            for _ in range(ROUNDS):
                single.append(await per_second(BOTH[:1], REQUESTS))
                double.append(await per_second(BOTH, REQUESTS))
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
