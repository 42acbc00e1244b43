"""Runs `glossa up` as a process and reads its screen, for tests that need a real suite."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from services.cli.client import connected
from services.local.free_ports import free_ports
from services.local.layout import Ports
from services.local.processes import is_serving
from services.local.state import State
from tests.local.processes import command_of, descendants

GLOSSA = [sys.executable, "-m", "services.cli"]
SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Up:
    """A running `glossa up`."""

    process: asyncio.subprocess.Process
    state: State
    ports: Ports
    screen: str

    def pid_of(self, part: str) -> int:
        [pid] = [pid for pid in descendants(self.process.pid) if part in command_of(pid)]
        return pid

    async def answers(self) -> bool:
        channels = [grpc.aio.insecure_channel(a) for a in self.ports.addresses().values()]
        async with contextlib.AsyncExitStack() as stack:
            for channel in channels:
                await stack.enter_async_context(channel)
            return all([await is_serving(channel) for channel in channels])

    async def asks(self) -> int:
        addresses = self.ports.addresses()
        async with connected(state=self.state, addresses=addresses) as client:
            return int((await client.quota("alice")).remaining_units)

    async def reads(self, words: str) -> None:
        """Return when `up` has said so."""
        assert self.process.stdout is not None
        while words not in (line := (await self.process.stdout.readline()).decode()):
            assert line, f"up ended without saying {words!r}"


def environment(folder: Path, ports: Ports, **more: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if name != "DATABASE_URL"},
        "GLOSSA_STATE_DIR": str(folder / "state"),
        "GLOSSA_PORT_BASE": str(ports.base),
        "GLOSSA_METRICS_PORT_BASE": str(ports.metrics_base),
        "COLUMNS": "100",
        # Patient, since test machines are shared.
        "GLOSSA_ANSWER_WITHIN_SECONDS": "30",
        **more,
    }


@contextlib.asynccontextmanager
async def started(
    folder: Path, *, command: list[str] | None = None, **more: str
) -> AsyncIterator[Up]:
    ports = free_ports()
    process = await asyncio.create_subprocess_exec(
        *(command or [*GLOSSA, "up"]),
        env=environment(folder, ports, **more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        screen = await read_screen(process)
        yield Up(process=process, state=State(folder / "state"), ports=ports, screen=screen)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


async def read_screen(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    screen = ""
    async with asyncio.timeout(SECONDS):
        while "QuotaService/GetQuotaStatus" not in screen:
            line = await process.stdout.readline()
            assert line, f"up ended early: {screen}"
            screen += line.decode()
    return screen
