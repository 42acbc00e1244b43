"""Row 3: how long one charged hit takes, alone, against a bare echo and one insert by pgbench.

Two hops and one commit may take four times as long as one hop and one commit. Ids as in row 1.
"""

import asyncio
import re
import statistics
import sys
import tempfile
from asyncio.subprocess import PIPE
from functools import partial
from pathlib import Path

import asyncpg

from services.local.account import Account
from services.local.postgres import readable_bin
from tests.bench.hits import ECHO, EXPLAIN_PAGE, Hits, bare_echo, load
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import UNLIMITED, Stand, open_stand

ROUNDS, REQUESTS, WARM_UP, BAR = 3, 600, 300, 4
CREATE_LINES = "CREATE TABLE line (id uuid PRIMARY KEY, user_id text, units int)"
INSERT = "INSERT INTO line VALUES (gen_random_uuid(), 'user-1', 1);"


async def insert_seconds(stand: Stand, script: Path) -> float:
    """The mean of single inserts, each its own transaction, by the server's own tool."""
    pgbench = readable_bin(stand.plan.state.root, Account()) / "pgbench"
    process = await asyncio.create_subprocess_exec(
        *(pgbench, "-n", "-c", "1", "-M", "prepared", "-t", str(REQUESTS)),
        *("-f", str(script), stand.admin_url),
        stdout=PIPE,
        stderr=PIPE,
    )
    out, err = await process.communicate()
    found = re.search(r"latency average = ([\d.]+) ms", out.decode())
    assert found is not None, err.decode()
    return float(found[1]) / 1000


async def run() -> list[Figure]:
    theirs: list[float] = []
    ours: dict[bool, list[float]] = {False: [], True: []}
    async with open_stand() as stand, bare_echo() as echo:
        await stand.start_all({"quota": UNLIMITED})
        admin = await asyncpg.connect(stand.admin_url)
        await admin.execute(CREATE_LINES)
        await admin.close()
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "insert.sql"
            script.write_text(INSERT)
            hits = Hits(stand, Path(folder))
            await hits.open()
            echoes = hits.write_echoes(REQUESTS)
            alone = partial(load, token=hits.token, in_flight=1, connections=1)
            warm = hits.write_requests(WARM_UP, own_ids=True)
            await alone(stand.addresses["cache"], EXPLAIN_PAGE, warm)
            for _ in range(ROUNDS):
                for own_ids, seen in ours.items():
                    asked = hits.write_requests(REQUESTS, own_ids=own_ids)
                    done = await alone(stand.addresses["cache"], EXPLAIN_PAGE, asked)
                    seen.append(done.p50)
                bare = (await alone(echo, ECHO, echoes)).p50
                theirs.append(bare + await insert_seconds(stand, script))
    return [
        Figure(
            row=3,
            what=f"one charged hit alone, {whose} ids, p50",
            ours=f"{1000 * statistics.median(ours[own_ids]):.2f} ms",
            reference=f"echo + insert {1000 * statistics.median(theirs):.2f} ms",
            value=median_ratio(ours[own_ids], theirs),
            unit="x",
            bar=BAR,
            at_least=False,
            unjudged="shown beside it" if own_ids else "",
        )
        for own_ids, whose in ((False, "the Cache's"), (True, "callers'"))
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
