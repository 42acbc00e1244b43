"""Row 5: from the commit of an enqueue to the job in the worker's hands, in an idle system.

Bars: median and 99th percentile at most 1.5 times pgqueuer's. Ours goes the whole way: ExplainPage
makes the generation, the Cache pushes it over gRPC to another process. Both are timed from the
moment the database itself notes for the commit.
"""

import asyncio
import statistics
import sys
import time
from uuid import UUID, uuid4

import asyncpg
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from tests.bench.documents import lecture, upload
from tests.bench.no_op_worker import more
from tests.bench.peer import running_pgqueuer
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import UNLIMITED, Stand, open_stand

TIMES, ROUNDS, BAR = 100, 3, 1.5
WARM_UP = 5
# Long enough that nothing is still busy with the last one.
IDLE_SECONDS = 0.02
# The request was attached in the transaction that made the generation.
COMMITTED = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8
FROM cache.requests
WHERE request_id = $1
"""


class Line:
    """One worker that waits for jobs, one caller who asks for pages nobody has asked for."""

    def __init__(self, stand: Stand, admin: "asyncpg.Connection[asyncpg.Record]") -> None:
        self._stand = stand
        self._admin = admin
        self._page = 0

    async def open(self) -> None:
        registry = RegistryServiceStub(await self._stand.channel("registry"))
        self._cache = CacheServiceStub(await self._stand.channel("cache"))
        self._jobs = JobServiceStub(await self._stand.channel("cache"))
        self._worker = self._stand.bearer("worker")
        self._gateway = self._stand.bearer("gateway")
        content = lecture(WARM_UP + TIMES * ROUNDS)
        self._hash = await upload(registry, self._gateway, user="alice", content=content)
        self._stream = self._jobs.LeaseJobs(metadata=self._worker)
        for _ in range(WARM_UP):
            await self.pick_up()

    async def pick_up(self) -> float:
        """Seconds from the commit to the job arriving here; both clocks are this machine's."""
        self._page += 1
        request_id = uuid4()
        await self._stream.write(more(1))
        await asyncio.sleep(IDLE_SECONDS)
        asking = asyncio.create_task(self._ask(request_id))
        response = await self._stream.read()
        arrived = time.time()
        assert isinstance(response, jobs_pb2.LeaseJobsResponse), "the stream has ended"
        [job] = response.jobs
        assert job.lease.generation_id == await asking
        committed: float = await self._admin.fetchval(COMMITTED, request_id)
        await self._complete(job.lease)
        return arrived - committed

    async def _complete(self, lease: jobs_pb2.Lease) -> None:
        """So that its lease does not run out and bring it back."""
        item = jobs_pb2.CompleteJobsRequest.Item(lease=lease)
        await self._jobs.CompleteJobs(
            jobs_pb2.CompleteJobsRequest(worker_id="bench", items=[item]), metadata=self._worker
        )

    async def _ask(self, request_id: UUID) -> str:
        answer = await self._cache.ExplainPage(
            cache_pb2.ExplainPageRequest(
                user_id="alice",
                pdf_hash=self._hash,
                page=self._page,
                locale="en",
                request_id=str(request_id),
            ),
            metadata=self._gateway,
        )
        return answer.generation_id


def milliseconds(seconds: list[float]) -> tuple[float, float]:
    """Median and 99th percentile."""
    return 1e3 * statistics.median(seconds), 1e3 * statistics.quantiles(seconds, n=100)[98]


async def run() -> list[Figure]:
    ours, theirs = [], []
    async with open_stand() as stand, running_pgqueuer(stand) as peer:
        await asyncio.gather(stand.start("registry"), stand.start("quota", UNLIMITED))
        await stand.start("cache")
        admin = await asyncpg.connect(stand.admin_url)
        line = Line(stand, admin)
        await line.open()
        for _ in range(ROUNDS):
            ours.append(milliseconds([await line.pick_up() for _ in range(TIMES)]))
            theirs.append(milliseconds(await peer.measure(pick_up=TIMES)))
        await admin.close()
    return [
        Figure(
            row=5,
            what=f"pick-up: enqueue commit to the worker's hands, {name}",
            ours=f"{statistics.median(one[place] for one in ours):.1f} ms",
            reference=f"pgqueuer {statistics.median(one[place] for one in theirs):.1f} ms",
            value=median_ratio([one[place] for one in ours], [one[place] for one in theirs]),
            unit="x",
            bar=BAR,
            at_least=False,
        )
        for place, name in enumerate(("p50", "p99"))
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
