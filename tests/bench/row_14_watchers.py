"""Row 14: resident memory when idle, and with 5,000 watchers.

Bars: 150 MB idle for each service, 50 kB a watcher. 5,000 streams of one process over 500
generations; then every page gets ready, and everybody must have been told everything.
"""

import asyncio
import sys

import asyncpg

from tests.bench.memory import resident_bytes
from tests.bench.report import Figure, standalone
from tests.bench.stand import UNLIMITED, open_stand
from tests.bench.watchers import Line

WATCHERS, GENERATIONS, CHANNELS = 5_000, 500, 20
GAP_SECONDS = 0.02
BAR_IDLE, BAR_EACH = 150_000_000, 50_000


async def run() -> list[Figure]:
    async with open_stand() as stand:
        services = await stand.start_all({"quota": UNLIMITED})
        idle = {name: resident_bytes(service.pid) for name, service in services.items()}
        worker = services["worker"]
        admin = await asyncpg.connect(stand.admin_url)
        line = Line(stand, admin)
        await line.open()
        generations = await line.ask(GENERATIONS)
        before = resident_bytes(worker.pid)
        watchers = await line.watch(generations, WATCHERS, CHANNELS)
        each = (resident_bytes(worker.pid) - before) / WATCHERS
        following = [asyncio.create_task(watcher.follow()) for watcher in watchers]
        for generation_id in generations:
            await line.let_go(generation_id)
            await asyncio.sleep(GAP_SECONDS)
        await asyncio.gather(*following)
        whole = all(watcher.is_whole for watcher in watchers)
        await admin.close()
    return [
        Figure(
            row=14,
            what="resident memory of the largest service, idle",
            ours=", ".join(f"{name} {size / 1e6:.0f}" for name, size in idle.items()) + " MB",
            reference="",
            value=max(idle.values()) / 1e6,
            unit="MB",
            bar=BAR_IDLE / 1e6,
            at_least=False,
        ),
        Figure(
            row=14,
            what=f"memory for each of {WATCHERS:,} watchers",
            ours=f"{each / 1e3:.1f} kB",
            reference="",
            value=each / 1e3,
            unit="kB",
            bar=BAR_EACH / 1e3,
            at_least=False,
            broken="" if whole else "events were lost",
        ),
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
