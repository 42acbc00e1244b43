"""Measures how late the event loop is: heartbeats are as late as that."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

from services.worker.metrics import LOOP_LAG_SECONDS

LOOK_EVERY = timedelta(milliseconds=20)


@asynccontextmanager
async def watching_the_loop(
    observe: Callable[[float], None] = LOOP_LAG_SECONDS.observe,
) -> AsyncIterator[None]:
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
