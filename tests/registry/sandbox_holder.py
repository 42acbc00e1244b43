"""A process that keeps a PDF child busy, for a test that kills it."""

import asyncio
import os
import sys

from services.registry.sandbox import SandboxLimits, open_sandbox


async def hold(path: str) -> None:
    async with open_sandbox(
        SandboxLimits(children=1, cpu_seconds=600, wall_seconds=600)
    ) as sandbox:
        await sandbox.warm()
        [pid] = sandbox.pids
        print(pid, flush=True)
        await sandbox.describe(os.open(path, os.O_RDONLY), [1])


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1]))
