"""Starts a peer in its own environment and asks it for figures, over the same Postgres."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from services.local.bootstrap import ensure_database
from tests.bench.stand import PEERS_PYTHON, Stand

PGQUEUER = Path(__file__).with_name("peer_pgqueuer.py")


class Peer:
    def __init__(self, process: Process) -> None:
        self._process = process

    async def measure(self, **order: int) -> list[float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            sys.exit("the peer has ended; its last words are above")
        seconds: list[float] = json.loads(line)
        return seconds


@asynccontextmanager
async def running_pgqueuer(stand: Stand) -> AsyncIterator[Peer]:
    if not PEERS_PYTHON.exists():
        sys.exit("the peers are not installed: run `make bench-peers`")
    url = await ensure_database(stand.admin_url, "pgqueuer")
    process = await asyncio.create_subprocess_exec(
        PEERS_PYTHON, PGQUEUER, url, stdin=PIPE, stdout=PIPE, limit=2**22
    )
    try:
        yield Peer(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
