"""BENCH row 8: exact window decisions per second through AdmitMany, durable, against two peers.

`limits` with a Redis moving window (not durable): at least as many. `pyrate-limiter` with
Postgres: at least ten times as many. Run it with `python -m tests.bench.row_08_admit_many`.
"""

import asyncio
import random
import statistics
import sys
import time
from typing import Any
from uuid import uuid4

import grpc
from glossa.quota.v1 import quota_pb2 as pb
from glossa.registry.v1 import registry_pb2

from tests.bench.peer import redis, run_peer
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import open_stand

BARS = {"limits + Redis": 1, "pyrate + Postgres": 10}
# Everybody passes, so that every decision is written down.
GENEROUS = {
    "units_per_period": 10**9,
    "soft_limit": 60_000,
    "hard_limit": 10_000,
    "daily_limit": 100_000,
    "answer_within_seconds": 30,
}
ROUNDS = 3
SECONDS = 3
USERS = 1000
# What the Cache sends at most, and what one call may carry at most: the first is judged.
BATCHES = {256: 160, 1000: 40}
WARMING_BATCHES = 20
JUDGED = 256
# One batch travels while the next is decided, as from two Cache processes.
IN_FLIGHT = 2
# Its tables grow with every decision and it reads all of them: few users keep them short.
PYRATE_USERS = 100
DICE = random.Random(1)
GENERATIONS = [str(uuid4()) for _ in range(100)]


async def run() -> list[Figure]:
    ours: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    theirs: dict[str, list[float]] = {name: [] for name in BARS}
    # Memory for its indexes, as in production.
    async with open_stand(shared_buffers="512MB") as stand, redis() as redis_port:
        await stand.start("quota", GENEROUS)
        channel, bearer = await stand.channel("quota"), stand.bearer("cache")
        await decisions_per_second(channel, bearer, 256, WARMING_BATCHES)
        for _ in range(ROUNDS):
            for batch, batches in BATCHES.items():
                ours[batch].append(await decisions_per_second(channel, bearer, batch, batches))
            theirs["limits + Redis"].append(best_of_limits(f"redis://127.0.0.1:{redis_port}"))
            theirs["pyrate + Postgres"].append(best_of_pyrate(stand.admin_url))
    return [
        Figure(
            row=8,
            what=f"exact window decisions through AdmitMany, batches of {batch:,}, durable",
            ours=f"{statistics.median(mine):,.0f}/s",
            reference=f"{name} {statistics.median(other):,.0f}/s",
            value=median_ratio(mine, other),
            unit="x",
            bar=BARS[name],
            at_least=True,
            unjudged="" if batch == JUDGED else "shown beside it",
        )
        for batch, mine in ours.items()
        for name, other in theirs.items()
    ]


async def decisions_per_second(
    channel: grpc.aio.Channel, bearer: grpc.aio.Metadata, batch: int, batches: int
) -> float:
    """Requests are made before the clock starts and answers read after it stops."""
    call: Any = channel.unary_unary("/glossa.quota.v1.QuotaService/AdmitMany")
    waiting = [prepared_batch(batch) for _ in range(batches)]
    answers: list[bytes] = []

    async def keep_asking() -> None:
        while waiting:
            answers.append(await call(waiting.pop(), metadata=bearer))

    started = time.perf_counter()
    await asyncio.gather(*(keep_asking() for _ in range(IN_FLIGHT)))
    seconds = time.perf_counter() - started
    for answer in answers:
        responses = pb.AdmitManyResponse.FromString(answer).responses
        assert [one.decision for one in responses] == batch * [pb.DECISION_ADMITTED]
    return batches * batch / seconds


def prepared_batch(batch: int) -> bytes:
    wanted = [hit(f"user-{DICE.randrange(USERS)}", DICE.choice(GENERATIONS)) for _ in range(batch)]
    return pb.AdmitManyRequest(requests=wanted).SerializeToString()


def best_of_limits(redis_url: str) -> float:
    """With one thread and with eight, whichever is quicker."""
    return max(
        run_peer("limits_redis.py", redis_url, str(SECONDS), threads, str(USERS))
        for threads in ("1", "8")
    )


def best_of_pyrate(url: str) -> float:
    return max(
        run_peer("pyrate_postgres.py", url, str(SECONDS), threads, str(PYRATE_USERS))
        for threads in ("1", "8")
    )


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


if __name__ == "__main__":
    sys.exit(standalone(run))
