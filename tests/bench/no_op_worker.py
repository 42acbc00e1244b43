"""A worker that does nothing, quickly: leases jobs from the Cache and completes them in batches."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub

# Half of what a call may carry: larger ones hold up the event loop for longer than they save.
BATCH = 250
# Batches on their way at once: the next is handed out while the last is completed.
IN_FLIGHT = 8
STICKER = cache_pb2.Sticker(
    sticker_id="s1",
    kind=cache_pb2.STICKER_KIND_TERM,
    title="Nothing",
    body_markdown="No work was done.",
    anchor=cache_pb2.Anchor(quote="Nothing"),
)

# As attaching writes them: a hundred owners who take turns.
ENQUEUE = """
INSERT INTO cache.generations
    (kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
     owner, turn)
SELECT 'page_explanation', encode(sha256(convert_to($1, 'utf8')), 'hex'), number, '1', 'en',
       'text_only', 'none', 'shared', 0, 'owner-' || number % 100, number / 100
FROM generate_series(1, $2::integer) AS number
"""


async def enqueue(admin: "asyncpg.Connection[asyncpg.Record]", jobs: int) -> None:
    await admin.execute(ENQUEUE, uuid4().hex, jobs)


class NoOpWorker:
    def __init__(self, channel: grpc.aio.Channel, bearer: grpc.aio.Metadata) -> None:
        self._stub = JobServiceStub(channel)
        self._bearer = bearer
        # A stream takes one message at a time.
        self._writing = asyncio.Lock()
        self.accepted = 0

    async def drain(self, jobs: int) -> None:
        """Lease and complete until so many results are accepted."""
        stream = self._stub.LeaseJobs(metadata=self._bearer)
        for _ in range(IN_FLIGHT):
            await stream.write(more(BATCH))
        async with asyncio.TaskGroup() as completing:
            leases: list[jobs_pb2.Lease] = []
            taken = 0
            while taken < jobs:
                response = await stream.read()
                assert isinstance(response, jobs_pb2.LeaseJobsResponse), "the stream has ended"
                found = [job.lease for job in response.jobs]
                taken += len(found)
                leases += found
                while len(leases) >= BATCH or (leases and taken == jobs):
                    batch, leases = leases[:BATCH], leases[BATCH:]
                    completing.create_task(self._complete(batch, stream))
        stream.cancel()

    async def _complete(self, leases: Sequence[jobs_pb2.Lease], stream: Any) -> None:
        items = [
            jobs_pb2.CompleteJobsRequest.Item(lease=lease, stickers=[STICKER]) for lease in leases
        ]
        response = await self._stub.CompleteJobs(
            jobs_pb2.CompleteJobsRequest(worker_id="bench", items=items), metadata=self._bearer
        )
        self.accepted += list(response.verdicts).count(jobs_pb2.JOB_VERDICT_ACCEPTED)
        async with self._writing:
            await stream.write(more(len(leases)))


def more(credits_: int) -> jobs_pb2.LeaseJobsRequest:
    return jobs_pb2.LeaseJobsRequest(worker_id="bench", credits=credits_, batched=True)
