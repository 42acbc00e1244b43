"""Starts what we are compared with: programs in an environment of their own, Redis from Debian."""

import asyncio
import json
import shutil
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.local.bootstrap import ensure_database
from services.local.free_ports import free_ports
from tests.bench.report import NotRun
from tests.bench.stand import Stand

PROJECT = Path(__file__).resolve().parents[2]
BIN = PROJECT / ".venv-bench" / "bin"
SCRIPTS = Path(__file__).parent / "peers"
START_SECONDS = 60


def program(name: str) -> Path:
    """A program of the peers' environment."""
    if not (BIN / name).exists():
        raise NotRun(f"{name} is not installed: run `make bench-peers`")
    return BIN / name


def debian_program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotRun(f"there is no {name}: apt-get install {package}")
    return found


def run_peer(script: str, *arguments: str) -> float:
    """The figure a peer's script prints."""
    command = [str(program("python")), str(SCRIPTS / script), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{script} failed:\n{result.stderr}"
    return float(result.stdout)


class Peer:
    """One that stays and is asked again and again, by lines of JSON."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def measure(self, **order: int) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        line = await self._process.stdout.readline()
        assert line, "the peer has ended; its last words are above"
        seconds: list[float] = json.loads(line)
        return seconds


@asynccontextmanager
async def running_pgqueuer(stand: Stand) -> AsyncIterator[Peer]:
    """pgqueuer over the same Postgres as ours."""
    url = await ensure_database(stand.admin_url, "pgqueuer")
    process = await asyncio.create_subprocess_exec(
        *(program("python"), SCRIPTS / "pgqueuer_jobs.py", url),
        stdin=PIPE,
        stdout=PIPE,
        limit=2**22,
    )
    try:
        yield Peer(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


@asynccontextmanager
async def redis() -> AsyncIterator[int]:
    """The port of Debian's redis-server, as it comes but without saving to disk."""
    name = debian_program("redis-server", "redis-server")
    port = free_ports().port("registry")
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    async with running(name, *options):
        await until_open(port)
        yield port


@asynccontextmanager
async def running(*command: str | Path, **environment: str) -> AsyncIterator[Process]:
    """A program without a word, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=DEVNULL, stderr=DEVNULL, env=environment or None
    )
    try:
        yield process
    finally:
        process.terminate()
        await process.wait()


async def until_open(port: int) -> None:
    """Returns when somebody listens."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.close()
            return
