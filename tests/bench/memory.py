"""How much memory a process holds."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def most_memory(pid: int, every_seconds: float = 0.005) -> AsyncIterator[list[int]]:
    """The most memory a process held while the block ran, as the only item at its end."""
    most = [resident_bytes(pid)]

    async def look() -> None:
        while True:
            most[0] = max(most[0], resident_bytes(pid))
            await asyncio.sleep(every_seconds)

    looking = asyncio.create_task(look())
    try:
        yield most
    finally:
        looking.cancel()
