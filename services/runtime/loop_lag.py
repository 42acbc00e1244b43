"""Measures how late the event loop is: everything a process answers is as late as that."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache

from prometheus_client import Histogram

LOOK_EVERY = timedelta(milliseconds=20)
LAG_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 5)


@cache
def loop_lag(service: str) -> Histogram:
    return Histogram(
        f"glossa_{service}_loop_lag_seconds",
        "How late the event loop was, looked at fifty times a second.",
        buckets=LAG_BUCKETS,
    )


@asynccontextmanager
async def watching_the_loop(observe: Callable[[float], None]) -> AsyncIterator[None]:
    """Notes again and again by how much a short sleep was too long, until the block ends."""

    async def look() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LOOK_EVERY.total_seconds())
            observe(max(0.0, time.perf_counter() - began - LOOK_EVERY.total_seconds()))

    task = asyncio.create_task(look(), name="watch_the_loop")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
