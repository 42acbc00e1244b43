"""The hostile corpus through a whole Registry: memory, event loop and children.

Bars: the service's memory stays within 32 MB, its event loop is never blocked for 100 ms, and no
child lives longer than its limits. Run it as `python -m tests.bench.hostile_corpus`.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from services.local.bootstrap import bootstrap, ensure_database
from services.local.layout import SERVICES
from services.local.postgres import EmbeddedPostgres
from services.registry.__main__ import compose
from services.registry.config import Config
from services.runtime.auth import generate_keys
from services.runtime.logging import configure_logging
from services.runtime.server import running
from tests.bench.memory import resident_bytes
from tests.registry.client import Registry
from tests.registry.hostile import CORPUS
from tests.registry.test_upload import hash_of
from tests.suite import Keys

ROUNDS = 2
MOST_GROWTH_MB = 32
MOST_BLOCKED_MS = 100
CPU_SECONDS = 2
WALL_SECONDS = 10.0


class LoopWatch:
    """The longest time the event loop kept somebody waiting who wanted nothing."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, time.perf_counter() - began - 0.005)


def children_alive() -> int:
    """How many readers there are now."""
    alive = 0
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        for pid in (task / "children").read_text().split():
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            alive += "pdf_child" in command
    return alive


@asynccontextmanager
async def registry_here() -> AsyncIterator[Registry]:
    """A Registry in this process, whose memory and loop can be seen."""
    with tempfile.TemporaryDirectory(prefix="glossa-bench-") as name:
        folder = Path(name)
        os.chmod(name, 0o711)  # noqa: PTH101 - as root, the database runs as somebody else
        keys = Keys.make(folder, *generate_keys())
        async with EmbeddedPostgres(folder / "postgres") as postgres:
            url = await ensure_database(postgres.url, "bench")
            urls = await bootstrap(url, dict.fromkeys(SERVICES, "bench"))
            config = Config(
                database_url=urls["registry"],
                verify_key_file=keys.verify_key_file,
                store_url=str(folder / "objects"),
                spool_dir=folder / "spool",
                pdf_cpu_seconds=CPU_SECONDS,
                pdf_wall_seconds=WALL_SECONDS,
            )
            async with (
                running("registry", config, compose) as here,
                grpc.aio.insecure_channel(here.address) as channel,
            ):
                served = Registry(stub=RegistryServiceStub(channel), keys=keys, config=config)
                yield served.as_service("gateway")


async def send(registry: Registry, content: bytes, owner: pb.Owner) -> str:
    """Upload, resolve and read; how it ended."""
    try:
        await registry.upload(content, owner)
        request = pb.ResolvePageRequest(owner=owner, pdf_hash=hash_of(content), page=1)
        await registry.call("ResolvePage", request)
        worker = registry.as_service("worker")
        call = worker.stub.GetPageContent(
            pb.GetPageContentRequest(
                pdf_hash=hash_of(content), page=1, include_images=True, include_render=True
            ),
            metadata=worker.metadata,
        )
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "read"


async def main() -> int:
    configure_logging("bench", level="ERROR")
    contents = {name: case.make() for name, case in CORPUS.items()}
    watch, slowest, untyped = LoopWatch(), 0.0, []
    async with registry_here() as registry:
        for content in list(contents.values())[:5]:
            await send(registry, content, pb.Owner(user_id="warm"))
        before = resident_bytes(os.getpid())
        watching = asyncio.create_task(watch.run())
        for number in range(ROUNDS):
            for name, content in contents.items():
                began = time.perf_counter()
                ended = await send(registry, content, pb.Owner(user_id=f"bench-{number}"))
                if ended not in ("read", "INVALID_ARGUMENT"):
                    untyped.append(f"{name}: {ended}")
                slowest = max(slowest, time.perf_counter() - began)
        watching.cancel()
        growth = (resident_bytes(os.getpid()) - before) / 1e6
        alive = children_alive()
    left = children_alive()
    print(
        f"hostile corpus, {len(contents)} files x {ROUNDS}: memory {growth:+.0f} MB "
        f"(bar {MOST_GROWTH_MB}), loop blocked at most {watch.longest * 1000:.0f} ms "
        f"(bar {MOST_BLOCKED_MS}), answers without a type: {untyped or 'none'}, slowest file "
        f"{slowest:.1f} s, readers {alive} (bar {registry.config.pdf_children}), "
        f"left {left} (bar 0)"
    )
    blocked = watch.longest * 1000 > MOST_BLOCKED_MS
    outlived = alive > registry.config.pdf_children or left > 0
    return int(growth > MOST_GROWTH_MB or blocked or outlived or bool(untyped))


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
