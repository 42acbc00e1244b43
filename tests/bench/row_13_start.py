"""Row 13: `make run` after installation until everything serves, with nothing there and again.

Bars: 6 s cold (database made, tables made, keys made), 3 s warm. Serving is what `make run` says
itself when all four services answer their health checks.
"""

import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from pathlib import Path

from services.local.free_ports import free_ports
from tests.bench.report import Figure, standalone

ROUNDS, COLD_BAR, WARM_BAR = 3, 6, 3
READY = b"Glossa is ready"
PROJECT = Path(__file__).resolve().parents[2]


async def start_and_stop(state: Path) -> float:
    ports = free_ports()
    environment = os.environ | {
        "GLOSSA_STATE_DIR": str(state),
        "GLOSSA_PORT_BASE": str(ports.base),
        "GLOSSA_METRICS_PORT_BASE": str(ports.metrics_base),
    }
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *("make", "--silent", "run"),
        cwd=PROJECT,
        env=environment,
        stdout=PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        while READY not in (line := await process.stdout.readline()):
            assert line, "make run has ended"
        return time.perf_counter() - began
    finally:
        os.killpg(process.pid, signal.SIGINT)
        await process.communicate()


async def run() -> list[Figure]:
    cold, warm = [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory(prefix="glossa-bench-") as folder:
            cold.append(await start_and_stop(Path(folder)))
            warm.append(await start_and_stop(Path(folder)))
    return [
        Figure(
            row=13,
            what=f"`make run` until it serves, {name}",
            ours=f"{statistics.median(seconds):.1f} s",
            reference="",
            value=statistics.median(seconds),
            unit="s",
            bar=bar,
            at_least=False,
        )
        for name, seconds, bar in (("cold", cold, COLD_BAR), ("warm", warm, WARM_BAR))
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
