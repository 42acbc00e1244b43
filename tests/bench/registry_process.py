"""A Registry as a process of its own, over a Postgres that keeps its promises, for measurements."""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from services.local.bootstrap import bootstrap, ensure_database, service_url
from services.local.free_ports import free_ports
from services.local.layout import SERVICES
from services.local.postgres import EmbeddedPostgres
from services.local.processes import is_serving
from services.runtime.auth import generate_keys
from tests.suite import Keys

PASSWORDS = {service: f"bench-{service}" for service in SERVICES}
OWNER = pb.Owner(user_id="bench")


@dataclass(frozen=True, kw_only=True)
class BenchedRegistry:
    """The process and a way to call it."""

    pid: int
    stub: RegistryServiceStub
    metadata: tuple[tuple[str, str], ...]

    async def upload(self, chunks: Iterable[bytes]) -> pb.UploadDocumentResponse:
        """Send a PDF, chunk by chunk."""
        header = pb.UploadDocumentRequest.Header(owner=OWNER)

        async def parts() -> AsyncIterator[pb.UploadDocumentRequest]:
            yield pb.UploadDocumentRequest(header=header)
            for chunk in chunks:
                yield pb.UploadDocumentRequest(chunk=chunk)

        return await self.stub.UploadDocument(parts(), metadata=self.metadata)


@asynccontextmanager
async def benched_registry(**settings: str) -> AsyncIterator[BenchedRegistry]:
    """Postgres with fsync on, migrated, and one Registry over it; all gone at the end."""
    folder = Path(tempfile.mkdtemp(prefix="glossa-bench-"))
    keys = Keys.make(folder, *generate_keys())
    try:
        async with EmbeddedPostgres(folder / "postgres") as postgres:
            url = await ensure_database(postgres.url, "bench")
            await bootstrap(url, PASSWORDS)
            environment = {
                "PATH": os.environ["PATH"],
                "GLOSSA_DATABASE_URL": service_url(url, "registry", PASSWORDS["registry"]),
                "GLOSSA_VERIFY_KEY_FILE": str(keys.verify_key_file),
                "GLOSSA_STORE_URL": str(folder / "objects"),
                "GLOSSA_SPOOL_DIR": str(folder / "spool"),
                "GLOSSA_LOG_LEVEL": "WARNING",
            }
            async with _process(environment | settings) as (pid, channel):
                token = keys.token("gateway", "admin")
                yield BenchedRegistry(
                    pid=pid,
                    stub=RegistryServiceStub(channel),
                    metadata=(("authorization", f"Bearer {token}"),),
                )
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def _process(environment: dict[str, str]) -> AsyncIterator[tuple[int, grpc.aio.Channel]]:
    port = free_ports().port("registry")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.registry"),
        env=environment | {"GLOSSA_PORT": str(port)},
    )
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            while not await is_serving(channel):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            yield process.pid, channel
    finally:
        process.terminate()
        await process.wait()


def resident_bytes(pid: int) -> int:
    """How much memory a process holds now."""
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
