"""Row 1: charged cache hits at 128 in flight, against a bare grpc.aio echo of the same payload.

Cache, Quota and Postgres with `fsync`; 1,000 users; every request is a new line in the ledger,
and they are counted afterwards. Bar: 0.45 of the echo, with ids made by the Cache, as the bar was
set. The figure for ids of the callers' own, which the Cache has to look up, is shown beside it.
"""

import sys
import tempfile
from pathlib import Path

import asyncpg

from tests.bench.hits import COUNT_CHARGES, ECHO, EXPLAIN_PAGE, Hits, bare_echo, load
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import UNLIMITED, open_stand

ROUNDS, REQUESTS, WARM_UP, BAR = 3, 10_000, 2_000, 0.45


async def run() -> list[Figure]:
    echoed: list[float] = []
    hit: dict[bool, list[float]] = {False: [], True: []}
    async with open_stand() as stand, bare_echo() as echo:
        await stand.start_all({"quota": UNLIMITED})
        admin = await asyncpg.connect(stand.admin_url)
        with tempfile.TemporaryDirectory() as folder:
            hits = Hits(stand, Path(folder))
            await hits.open()
            echoes = hits.write_echoes(REQUESTS)
            warm = hits.write_requests(WARM_UP, own_ids=False)
            await load(stand.addresses["cache"], EXPLAIN_PAGE, warm, token=hits.token)
            before = await admin.fetchval(COUNT_CHARGES)
            for _ in range(ROUNDS):
                echoed.append((await load(echo, ECHO, echoes, token=hits.token)).per_second)
                for own_ids, seen in hit.items():
                    asked = hits.write_requests(REQUESTS, own_ids=own_ids)
                    done = await load(
                        stand.addresses["cache"], EXPLAIN_PAGE, asked, token=hits.token
                    )
                    seen.append(done.per_second)
            charged = await admin.fetchval(COUNT_CHARGES) - before
        await admin.close()
    wanted = 2 * ROUNDS * REQUESTS
    broken = "" if charged == wanted else f"{charged} of {wanted} charged"
    return [
        Figure(
            row=1,
            what=f"charged hits, 128 in flight, {whose} ids, payload {len(hits.payload):,} B",
            ours=f"{max(hit[own_ids]):,.0f}/s",
            reference=f"bare echo {max(echoed):,.0f}/s",
            value=median_ratio(hit[own_ids], echoed),
            unit="x",
            bar=BAR,
            at_least=True,
            broken=broken,
            unjudged="shown beside it" if own_ids else "",
        )
        for own_ids, whose in ((False, "the Cache's"), (True, "callers'"))
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
