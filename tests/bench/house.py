"""What the benchmarks of Quota share: a durable Postgres, a Quota process, a client, a verdict."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import grpc
from glossa.quota.v1 import quota_pb2 as pb
from glossa.registry.v1 import registry_pb2

from services.local.bootstrap import bootstrap, ensure_database
from services.local.free_ports import free_ports
from services.local.layout import SERVICES
from services.local.postgres import EmbeddedPostgres
from services.local.processes import is_serving
from services.local.tether import tethered
from services.runtime.auth import generate_keys
from tests.suite import Keys

PROJECT = Path(__file__).resolve().parents[2]
PEERS = PROJECT / ".venv-bench" / "bin" / "python"
PEER_SCRIPTS = Path(__file__).parent / "peers"
# Everybody passes, so that every decision is written down.
GENEROUS = {
    "GLOSSA_UNITS_PER_PERIOD": "1000000000",
    "GLOSSA_SOFT_LIMIT": "60000",
    "GLOSSA_HARD_LIMIT": "10000",
    "GLOSSA_DAILY_LIMIT": "100000",
    "GLOSSA_ANSWER_WITHIN_SECONDS": "30",
    "GLOSSA_LOG_LEVEL": "WARNING",
}


class PeerMissing(Exception):
    """The other side of a comparison is not installed: not run, never a pass."""


@asynccontextmanager
async def postgres() -> AsyncIterator[EmbeddedPostgres]:
    """A server with `fsync` on, and with memory for its indexes, as in production."""
    folder = Path(tempfile.mkdtemp(prefix="glossa-bench-"))
    async with EmbeddedPostgres(folder, options={"shared_buffers": "512MB"}) as server:
        yield server
    shutil.rmtree(folder)


async def database(server: EmbeddedPostgres, name: str) -> tuple[str, str]:
    """A migrated database: its address for admins and for Quota."""
    admin_url = await ensure_database(server.url, name)
    urls = await bootstrap(admin_url, dict.fromkeys(SERVICES, "bench"))
    return admin_url, urls["quota"]


def make_keys() -> Keys:
    return Keys.make(Path(tempfile.mkdtemp(prefix="glossa-bench-")), *generate_keys())


@asynccontextmanager
async def quota_process(url: str, keys: Keys) -> AsyncIterator[grpc.aio.Channel]:
    port = free_ports().port("quota")
    process = await asyncio.create_subprocess_exec(
        *tethered([sys.executable, "-P", "-m", "services.quota"], on_parent_death=signal.SIGKILL),
        env={
            **os.environ,
            **GENEROUS,
            "GLOSSA_DATABASE_URL": url,
            "GLOSSA_VERIFY_KEY_FILE": str(keys.verify_key_file),
            "GLOSSA_PORT": str(port),
        },
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            async with asyncio.timeout(60):
                while not await is_serving(channel):
                    pass
            yield channel
    finally:
        process.terminate()
        await process.wait()


def hit(user: str, generation_id: str) -> pb.AdmitRequest:
    """A cache hit to be charged, under an id of its own."""
    return pb.AdmitRequest(
        request_id=str(uuid4()),
        user_id=user,
        endpoint="explain_page",
        outcome=pb.OUTCOME_CACHED,
        generation_id=generation_id,
        page=pb.PageContext(
            pdf_hash="a" * 64,
            page=1,
            locale="en",
            effective_mode=registry_pb2.EFFECTIVE_MODE_TEXT_ONLY,
        ),
        expected_share_to_cache=True,
    )


def run_peer(script: str, *arguments: str) -> float:
    if not PEERS.exists():
        raise PeerMissing("peers are not installed: run `make bench-peers`")
    command = [str(PEERS), str(PEER_SCRIPTS / script), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise PeerMissing(result.stderr.strip().splitlines()[-1])
    return float(result.stdout)


@asynccontextmanager
async def redis() -> AsyncIterator[str]:
    """Debian's redis-server on a loopback port, as it comes but without saving to disk."""
    program = shutil.which("redis-server")
    if program is None:
        raise PeerMissing("there is no redis-server: apt-get install redis-server")
    port = str(free_ports().port("registry"))
    options = ["--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    process = await asyncio.create_subprocess_exec(
        program, *options, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(30):
            while not await _answers(int(port)):
                pass
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def _answers(port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
    except OSError:
        return False
    return answer.startswith(b"+PONG")
