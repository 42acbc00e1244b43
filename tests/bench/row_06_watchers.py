"""Row 6: from the commit that makes a page ready to the event at its watchers.

1,000 watchers of one worker process over 100 generations, with fsync on. Bars: 99 % of the events
arrive within 50 ms (the sources polled every 2 s); every watcher is told everything once and in
order; a watcher takes at most 50 kB.
"""

import asyncio
import statistics
import sys

import asyncpg

from tests.bench.memory import resident_bytes
from tests.bench.report import Figure, standalone
from tests.bench.stand import UNLIMITED, open_stand
from tests.bench.watchers import Line, Watcher

WATCHERS, GENERATIONS, CHANNELS, ROUNDS = 1_000, 100, 10, 3
# Pages finish one after another, as they do: a burst would measure how long explaining takes.
GAP_SECONDS = 0.1
BAR_MS, BAR_BYTES, POLL_MS = 50, 50_000, 2_000


async def measure(line: Line, pid: int) -> tuple[list[float], float, bool]:
    """Milliseconds of every event, bytes for a watcher, and whether everybody was told all."""
    generations = await line.ask(GENERATIONS)
    before = resident_bytes(pid)
    watchers = await line.watch(generations, WATCHERS, CHANNELS)
    taken = (resident_bytes(pid) - before) / WATCHERS
    following = [asyncio.create_task(watcher.follow()) for watcher in watchers]
    for generation_id in generations:
        await line.let_go(generation_id)
        await asyncio.sleep(GAP_SECONDS)
    await asyncio.gather(*following)
    committed = await line.committed(generations)
    return _delays(watchers, committed), taken, all(one.is_whole for one in watchers)


def _delays(watchers: list[Watcher], committed: dict[str, float]) -> list[float]:
    return [1e3 * (one.ready_at - committed[one.generation_id]) for one in watchers]


async def run() -> list[Figure]:
    p99s, taken, whole = [], [], []
    async with open_stand() as stand:
        await asyncio.gather(stand.start("registry"), stand.start("quota", UNLIMITED))
        await stand.start("cache")
        worker = await stand.start("worker")
        admin = await asyncpg.connect(stand.admin_url)
        line = Line(stand, admin)
        await line.open()
        for _ in range(ROUNDS):
            delays, bytes_each, told_all = await measure(line, worker.pid)
            p99s.append(statistics.quantiles(delays, n=100)[98])
            taken.append(bytes_each)
            whole.append(told_all)
        await admin.close()
    p99 = statistics.median(p99s)
    return [
        Figure(
            row=6,
            what=f"ready commit to the event at {WATCHERS:,} watchers, p99",
            ours=f"{p99:.1f} ms",
            reference=f"a poll every {POLL_MS:,} ms",
            value=p99,
            unit="ms",
            bar=BAR_MS,
            at_least=False,
            broken="" if all(whole) else "events were lost",
        ),
        Figure(
            row=6,
            what="memory for a watcher",
            # Memory once taken is used again in later rounds: the first one tells.
            ours=f"{taken[0] / 1e3:.1f} kB",
            reference="",
            value=taken[0] / 1e3,
            unit="kB",
            bar=BAR_BYTES / 1e3,
            at_least=False,
        ),
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
