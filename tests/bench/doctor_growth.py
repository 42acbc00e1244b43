"""What `glossa doctor` asks of a database with a million generations and as many charges.

All invariants within 2 s; everything there ever was (`--full`) is told beside it. Run it with
`python -m tests.bench.doctor_growth [generations]`.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import asyncpg

from services.doctor.bounds import Bounds, configured_bounds
from services.doctor.examine import examine
from services.doctor.invariant import all_invariants
from services.doctor.verdict import Check, Status
from services.local.bootstrap import bootstrap, ensure_database, service_url
from services.local.layout import AUDITOR, LOGINS
from services.local.postgres import EmbeddedPostgres
from tests.doctor.history import write_history

BAR_SECONDS = 2.0
ROUNDS = 3
SLOWEST = 6
MEMORY = {"shared_buffers": "512MB"}  # for its indexes, as in production


async def main(generations: int) -> int:
    with tempfile.TemporaryDirectory(prefix="glossa-bench-") as folder:
        async with EmbeddedPostgres(Path(folder), options=MEMORY) as server:
            return await measure(server, generations)


async def measure(server: EmbeddedPostgres, generations: int) -> int:
    admin_url = await ensure_database(server.url, "grown")
    await bootstrap(admin_url, dict.fromkeys(LOGINS, "bench"))
    admin = await asyncpg.connect(admin_url)
    began = time.perf_counter()
    await write_history(admin, generations)
    print(f"{generations:,} generations written in {time.perf_counter() - began:.0f} s")
    await admin.execute("CHECKPOINT")
    await admin.close()
    auditor = await asyncpg.connect(service_url(admin_url, AUDITOR, "bench"))
    usual = configured_bounds(grace=Bounds.grace, since=Bounds.since)
    rounds = [await examined(auditor, "what is new", usual) for _ in range(ROUNDS)]
    seconds = statistics.median(rounds)
    await examined(auditor, "everything", Bounds(since=None, limits=usual.limits))
    await auditor.close()
    passed = seconds <= BAR_SECONDS
    print(f"doctor: {seconds:.2f} s (bar {BAR_SECONDS} s) {'ok' if passed else 'MISSED'}")
    return int(not passed)


async def examined(
    auditor: "asyncpg.Connection[asyncpg.Record]", what: str, bounds: Bounds
) -> float:
    began = time.perf_counter()
    checks = await examine(auditor, all_invariants(), bounds)
    seconds = time.perf_counter() - began
    unsound = [check for check in checks if check.status is not Status.SOUND]
    assert not unsound, [(check.name, check.detail, check.examples) for check in unsound]
    slow = sorted(checks, key=lambda check: check.seconds, reverse=True)[:SLOWEST]
    print(f"{what}: {seconds:.2f} s; " + ", ".join(map(told, slow)))
    return seconds


def told(check: Check) -> str:
    return f"{check.name} {check.seconds * 1000:.0f} ms"


if __name__ == "__main__":
    sys.exit(asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)))
