"""Row 14, the half of the Worker: resident memory when idle, and with 5,000 watchers.

Bars: 150 MB idle, 50 kB a watcher. 5,000 streams of one process over 500 generations; then every
page gets ready, and everybody must have been told everything.
"""

import asyncio
import sys

import asyncpg

from tests.bench.stand import UNLIMITED, open_stand
from tests.bench.watchers import Line, resident_bytes

WATCHERS, GENERATIONS, CHANNELS = 5_000, 500, 20
GAP_SECONDS = 0.02
BAR_IDLE, BAR_EACH = 150_000_000, 50_000


async def main() -> int:
    async with open_stand() as stand:
        await asyncio.gather(stand.start("registry"), stand.start("quota", UNLIMITED))
        await stand.start("cache")
        worker = await stand.start("worker")
        admin = await asyncpg.connect(stand.admin_url)
        line = Line(stand, admin)
        await line.open()
        generations = await line.ask(GENERATIONS)
        idle = resident_bytes(worker.pid)
        watchers = await line.watch(generations, WATCHERS, CHANNELS)
        each = (resident_bytes(worker.pid) - idle) / WATCHERS
        following = [asyncio.create_task(watcher.follow()) for watcher in watchers]
        for generation_id in generations:
            await line.let_go(generation_id)
            await asyncio.sleep(GAP_SECONDS)
        await asyncio.gather(*following)
        whole = all(watcher.is_whole for watcher in watchers)
        await admin.close()
    passed = idle <= BAR_IDLE and each <= BAR_EACH and whole
    print(
        f"row 14 worker: idle {idle / 1e6:.0f} MB (bar {BAR_IDLE / 1e6:.0f}),"
        f" {each / 1e3:.1f} kB for each of {WATCHERS} watchers (bar {BAR_EACH / 1e3:.0f}),"
        f" {'nothing lost' if whole else 'EVENTS LOST'}: {'ok' if passed else 'MISSED'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
