"""What the benchmarks of watching share: pages held back until watchers stand, and the watchers."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pymupdf
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from glossa.worker.v1 import worker_pb2
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from tests.bench.documents import upload
from tests.bench.stand import Stand

# Nobody takes pages up before they are let go.
HOLD_BACK = """
CREATE FUNCTION cache.hold_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.turn := NULL;
    NEW.run_after := now() + interval '1 hour';
    RETURN NEW;
END $$;
CREATE TRIGGER hold_back BEFORE INSERT ON cache.generations
FOR EACH ROW EXECUTE FUNCTION cache.hold_back();
"""
LET_GO = """
UPDATE cache.generations
SET turn = 0, run_after = now()
WHERE generation_id = $1 AND status = 'generating'
"""
RING = "SELECT pg_notify('cache_jobs', 'bench')"
# The last change of the row is the one that made it ready.
COMMITTED = """
SELECT generation_id, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 AS committed
FROM cache.generations
WHERE generation_id = ANY($1::uuid[]) AND status = 'ready'
"""


@dataclass(kw_only=True)
class Watcher:
    """One stream, what it was told, and when it heard of the end."""

    generation_id: str
    call: "grpc.aio.UnaryStreamCall[Any, worker_pb2.WatchGenerationResponse]"
    sequences: list[int] = field(default_factory=list)
    ready_at: float = 0.0

    async def begin(self) -> None:
        """Returns when it stands: it was told where things are."""
        first = await self.call.read()
        assert isinstance(first, worker_pb2.WatchGenerationResponse)
        self.sequences.append(first.sequence)

    async def follow(self) -> None:
        while isinstance(message := await self.call.read(), worker_pb2.WatchGenerationResponse):
            if message.heartbeat or message.sequence == self.sequences[-1]:
                continue  # a sign of life, or a new place in the queue
            self.sequences.append(message.sequence)
            if message.status == cache_pb2.GENERATION_STATUS_READY:
                self.ready_at = time.time()
                assert message.stickers

    @property
    def is_whole(self) -> bool:
        """From the snapshot on every number, in order, once."""
        first = self.sequences[0]
        expected = list(range(first, first + len(self.sequences)))
        return self.ready_at > 0 and self.sequences == expected


class Line:
    """A worker that is watched, and pages that wait until they are let go."""

    def __init__(self, stand: Stand, admin: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._stand = stand
        self._admin = admin

    async def open(self) -> None:
        await self._admin.execute(HOLD_BACK)

    async def ask(self, pages: int) -> list[str]:
        """New pages, held back; their generations."""
        registry = RegistryServiceStub(await self._stand.channel("registry"))
        cache = CacheServiceStub(await self._stand.channel("cache"))
        bearer = self._stand.bearer("gateway")
        pdf_hash = await upload(registry, bearer, user="alice", content=_pages(pages))
        generations = []
        for page in range(1, pages + 1):
            request = cache_pb2.ExplainPageRequest(
                user_id="alice", pdf_hash=pdf_hash, page=page, locale="en"
            )
            answer = await cache.ExplainPage(request, metadata=bearer)
            generations.append(answer.generation_id)
        return generations

    async def watch(
        self, generations: Sequence[str], watchers: int, channels: int
    ) -> list[Watcher]:
        """So many streams, spread over the generations; all of them stand."""
        stubs = [WorkerServiceStub(await self._stand.channel("worker")) for _ in range(channels)]
        bearer = self._stand.bearer("admin")
        found = []
        for number in range(watchers):
            generation_id = generations[number % len(generations)]
            request = worker_pb2.WatchGenerationRequest(generation_id=generation_id)
            call = stubs[number % channels].WatchGeneration(request, metadata=bearer)
            found.append(Watcher(generation_id=generation_id, call=call))
        for start in range(0, watchers, 100):
            await asyncio.gather(*(one.begin() for one in found[start : start + 100]))
        return found

    async def let_go(self, generation_id: str) -> None:
        await self._admin.execute(LET_GO, generation_id)
        await self._admin.execute(RING)

    async def committed(self, generations: Sequence[str]) -> dict[str, float]:
        rows = await self._admin.fetch(COMMITTED, generations)
        return {str(row["generation_id"]): row["committed"] for row in rows}


def _pages(count: int) -> bytes:
    """Pages that nobody has seen before."""
    document: Any = pymupdf.open()  # type: ignore[no-untyped-call]
    for number in range(count):
        text = f"Entropy number {number} is a measure of disorder. {uuid4().hex}"
        document.new_page().insert_text((72, 72), text)
    return bytes(document.tobytes())
