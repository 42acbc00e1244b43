"""Row 7: 10,000 identical cold requests of 1,000 users at two Cache processes, all at once.

Bar: exactly one model call, everybody answered within 10 s, one starter charged; then everybody is
served from the cache. The worker is the real one with the offline model, started when all have
been answered; its calls are counted where every attempt leaves a trace, in the queue itself.
"""

import asyncio
import sys
import time
from collections import Counter
from uuid import UUID

import asyncpg
import grpc
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.quota.v1 import quota_pb2

from tests.bench.documents import hold_by_all, lecture
from tests.bench.report import Figure, standalone
from tests.bench.stand import UNLIMITED, Stand, open_stand

REQUESTS, USERS, BAR_SECONDS = 10_000, 1_000, 10
GENERATED, JOINED = quota_pb2.OUTCOME_GENERATED, quota_pb2.OUTCOME_JOINED
REPLAYED = quota_pb2.OUTCOME_REPLAYED
IN_FLIGHT_PER_CACHE = 1_500  # a server refuses more than 2,000 calls at once
TRIES = 20
READY = "SELECT bool_and(status = 'ready') FROM cache.generations"


class Crowd:
    """A thousand users who hold the same document."""

    def __init__(self, stand: Stand, pdf_hash: str) -> None:
        self._stand = stand
        self._hash = pdf_hash
        self._bearer = stand.bearer("gateway")

    async def arrive(self, wave: int) -> list[cache_pb2.ExplainPageResponse]:
        """All requests at once, shared out between the replicas."""
        stubs = [CacheServiceStub(await self._stand.channel(name)) for name in ("cache", "cache-2")]
        gates = [asyncio.Semaphore(IN_FLIGHT_PER_CACHE) for _ in stubs]
        return await asyncio.gather(
            *(
                self._ask(stubs[number % 2], gates[number % 2], number, wave)
                for number in range(REQUESTS)
            )
        )

    async def _ask(
        self, stub: CacheServiceStub, gate: asyncio.Semaphore, number: int, wave: int
    ) -> cache_pb2.ExplainPageResponse:
        request = cache_pb2.ExplainPageRequest(
            user_id=f"user-{number % USERS}",
            pdf_hash=self._hash,
            page=1,
            locale="en",
            request_id=str(UUID(int=(wave << 64) + number + 1)),
        )
        for attempt in range(TRIES):
            async with gate:
                try:
                    return await stub.ExplainPage(request, metadata=self._bearer, timeout=30)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE or attempt == TRIES - 1:
                        raise
            await asyncio.sleep(0.05)
        raise AssertionError("unreachable")


async def run() -> list[Figure]:
    async with open_stand() as stand:
        await asyncio.gather(stand.start("registry"), stand.start("quota", UNLIMITED))
        await asyncio.gather(stand.start("cache"), stand.start("cache", name="cache-2"))
        admin = await asyncpg.connect(stand.admin_url)
        crowd = Crowd(stand, await hold_by_all(stand, USERS, lecture(1)))
        began = time.perf_counter()
        answers = await crowd.arrive(1)
        cold_seconds = time.perf_counter() - began
        started = Counter(answer.outcome for answer in answers)
        await stand.start("worker")
        while not await admin.fetchval(READY):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        began = time.perf_counter()
        served = await crowd.arrive(2)
        hit_seconds = time.perf_counter() - began
        calls = await admin.fetchval("SELECT sum(attempts) FROM cache.generations")
        charged = await admin.fetchval(
            "SELECT sum(quota_units) FROM quota.explain_requests WHERE outcome <> 'cached'"
        )
        await admin.close()
    one = len({answer.generation_id for answer in [*answers, *served]}) == 1
    everyone = all(answer.stickers for answer in served)
    # Who asks again after an UNAVAILABLE may find that the first call went through.
    exact = started[GENERATED] <= 1 and set(started) <= {GENERATED, JOINED, REPLAYED}
    counts = {quota_pb2.Outcome.Name(outcome): count for outcome, count in started.items()}
    conditions = {
        "more than one generation": one,
        "somebody has no stickers": everyone,
        f"outcomes {counts}": exact,
        f"{calls} model calls": calls == 1,
        f"{charged} units charged": charged == 1,
    }
    return [
        Figure(
            row=7,
            what=f"{REQUESTS:,} identical cold requests, {USERS:,} users, two Caches",
            ours=f"{cold_seconds:.1f} s, {calls} model call; then hits in {hit_seconds:.1f} s",
            reference="",
            value=cold_seconds,
            unit="s",
            bar=BAR_SECONDS,
            at_least=False,
            broken="; ".join(what for what, holds in conditions.items() if not holds),
        )
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
