"""The other services as the Worker sees them; deadlines live here."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from uuid import UUID

import grpc
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub
from glossa.quota.v1 import quota_pb2
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from glossa.registry.v1 import registry_pb2
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from services.runtime.channel import calling
from services.runtime.settings import CONTEXT_NEIGHBOURS
from services.worker.dead_letter import DeadLetter, Redriven, Spending
from services.worker.domain import (
    Failure,
    Image,
    Job,
    Lease,
    ModelCall,
    PageContent,
    Progress,
    Result,
    Verdict,
)
from services.worker.generation import GenerationView
from services.worker.metrics import MODEL_COST_DOLLARS, NANODOLLARS
from services.worker.report_wire import dead_letter_from, redriven_from, spending_from
from services.worker.wire import (
    duration_message,
    failure_message,
    generation_from,
    image_from,
    job_from,
    lease_message,
    operation_message,
    progress_message,
    render_from,
    sticker_message,
    verdict_from,
)

PAGE_SECONDS = 60.0
CALL_SECONDS = 5.0
# Pictures of one page that are held at a time; what is more is left out.
MOST_IMAGE_BYTES = 16 * 1024 * 1024
REDRIVE_SECONDS = 30.0
# A lease stream has no natural end; a new one each day keeps balancers and tokens fresh.
STREAM_SECONDS = 24 * 3600.0


class Registry:
    """Where text and pictures of pages come from."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = RegistryServiceStub(channel)

    async def get_page_content(
        self, pdf_hash: str, page: int, *, include_images: bool = False
    ) -> PageContent:
        """A page's text and that of its neighbours, in the order of their pages, and its images."""
        request = registry_pb2.GetPageContentRequest(
            pdf_hash=pdf_hash,
            page=page,
            neighbours=CONTEXT_NEIGHBOURS,
            include_images=include_images,
        )
        text, neighbours = registry_pb2.PageText(), list[registry_pb2.PageText]()
        images, room = list[Image](), MOST_IMAGE_BYTES
        with calling("registry"):
            async for part in self._stub.GetPageContent(request, timeout=PAGE_SECONDS):
                if part.HasField("text"):
                    text = part.text
                elif part.HasField("neighbour"):
                    neighbours.append(part.neighbour)
                elif part.HasField("image") and is_worth_a_look(part.image, room_bytes=room):
                    room -= len(part.image.content)
                    images.append(image_from(part.image))
        neighbours.sort(key=lambda neighbour: neighbour.page)
        return PageContent(
            text=text.text,
            has_hidden_text=text.has_hidden_text,
            # What readers of a neighbour cannot see is kept back with all of its text.
            neighbours=tuple("" if one.has_hidden_text else one.text for one in neighbours),
            images=tuple(images),
            total_pages=text.total_pages,
        )

    async def get_render(
        self, pdf_hash: str, page: int, *, even_if_blank: bool = True
    ) -> Image | None:
        """The whole page as a picture."""
        request = registry_pb2.GetPageContentRequest(
            pdf_hash=pdf_hash, page=page, include_render=True
        )
        render, is_blank = b"", False
        with calling("registry"):
            async for part in self._stub.GetPageContent(request, timeout=PAGE_SECONDS):
                render += part.render_png
                is_blank = is_blank or part.text.is_blank
        return render_from(render) if render and (even_if_blank or not is_blank) else None


def is_worth_a_look(image: registry_pb2.PageImage, *, room_bytes: int) -> bool:
    return not image.is_decorative and len(image.content) <= room_bytes


class Cache:
    """What generations are like, and who may see them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = CacheServiceStub(channel)
        self._jobs = JobServiceStub(channel)

    async def get_generations(self, generation_ids: Sequence[UUID]) -> list[GenerationView]:
        """Many of them as they are now, without stickers; those that are not there are left out."""
        request = jobs_pb2.GetGenerationsRequest(
            generation_ids=[str(one) for one in generation_ids]
        )
        with calling("cache"):
            response = await self._jobs.GetGenerations(request, timeout=CALL_SECONDS)
        return [generation_from(generation) for generation in response.generations]

    async def get_generation(self, generation_id: UUID, *, user_id: str = "") -> GenerationView:
        """The generation as it is now; with a user, only if that user asked for it."""
        request = cache_pb2.GetGenerationRequest(generation_id=str(generation_id), user_id=user_id)
        with calling("cache"):
            response = await self._stub.GetGeneration(request, timeout=CALL_SECONDS)
        return generation_from(response.generation)


class Quota:
    """Where it is counted what models cost."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = QuotaServiceStub(channel)

    async def record_operations(self, calls: Sequence[ModelCall]) -> None:
        request = quota_pb2.RecordOperationsRequest(
            operations=[operation_message(call) for call in calls]
        )
        with calling("quota"):
            response = await self._stub.RecordOperations(request, timeout=CALL_SECONDS)
        MODEL_COST_DOLLARS.inc(sum(response.cost_nanodollars) / NANODOLLARS)

    async def read_spending(self, generation_ids: Sequence[UUID]) -> Spending:
        """What generations have cost so far, and how today's money stands."""
        request = quota_pb2.GetGenerationCostsRequest(
            generation_ids=[str(one) for one in generation_ids]
        )
        with calling("quota"):
            response = await self._stub.GetGenerationCosts(request, timeout=CALL_SECONDS)
        costs = dict(zip(generation_ids, response.cost_nanodollars, strict=True))
        return spending_from(costs, response.day)


class Jobs:
    """The queue: leases in, results out."""

    def __init__(self, channel: grpc.aio.Channel, worker_id: str) -> None:
        self._stub = JobServiceStub(channel)
        self._worker_id = worker_id

    async def lease_jobs(
        self,
        credits_given: AsyncIterator[int],
        *,
        until_empty: bool = False,
        heartbeat: timedelta | None = None,
    ) -> AsyncGenerator[Job, None]:
        """Jobs as they come, one for each credit; ends after the credits end or the server does.

        With `until_empty` it also ends when there is nothing to be done. With a `heartbeat` the
        caller promises credits that often, if only 0, and soon after each job: whatever the Cache
        has not heard of when the stream breaks goes back to the queue.
        """
        received = [0]
        requests = self._credit_requests(credits_given, until_empty, heartbeat, received)
        call = self._stub.LeaseJobs(requests, timeout=STREAM_SECONDS)
        try:
            with calling("cache"):
                async for response in call:
                    received[0] += len(response.jobs)
                    for job in response.jobs:
                        yield job_from(job)
        finally:
            call.cancel()

    async def _credit_requests(
        self,
        credits_given: AsyncIterator[int],
        until_empty: bool,
        heartbeat: timedelta | None,
        received: Sequence[int],
    ) -> AsyncIterator[jobs_pb2.LeaseJobsRequest]:
        async for count in credits_given:
            yield jobs_pb2.LeaseJobsRequest(
                worker_id=self._worker_id,
                credits=count,
                until_empty=until_empty,
                batched=True,
                heartbeat_every=duration_message(heartbeat),
                acknowledges=heartbeat is not None,
                received=received[0],
            )

    async def list_failed_jobs(
        self, *, since: datetime, after: UUID | None, most: int
    ) -> list[DeadLetter]:
        """Generations that failed since then, in order; only what follows `after`."""
        request = jobs_pb2.ListFailedJobsRequest(
            after_generation_id=str(after) if after else "", page_size=most
        )
        request.failed_since.FromDatetime(since)
        with calling("cache"):
            response = await self._stub.ListFailedJobs(request, timeout=CALL_SECONDS)
        return [dead_letter_from(job) for job in response.jobs]

    async def redrive_jobs(self, generation_ids: Sequence[UUID]) -> list[Redriven]:
        """Starts failed generations anew; one result for each, in the same order."""
        request = jobs_pb2.RedriveJobsRequest(generation_ids=[str(one) for one in generation_ids])
        with calling("cache"):
            response = await self._stub.RedriveJobs(request, timeout=REDRIVE_SECONDS)
        return [redriven_from(result) for result in response.results]

    async def renew_leases(
        self, leases: Mapping[Lease, Progress | None]
    ) -> dict[UUID, timedelta | None]:
        """Keeps leases alive and tells their progress.

        Answers which generations are still ours, and how long each may still take.
        """
        request = jobs_pb2.RenewLeasesRequest(
            worker_id=self._worker_id,
            leases=[progress_message(lease, progress) for lease, progress in leases.items()],
        )
        with calling("cache"):
            response = await self._stub.RenewLeases(request, timeout=CALL_SECONDS)
        # A Cache of an older version does not tell the time.
        times = [time_left.ToTimedelta() for time_left in response.time_left]
        kept = [UUID(generation_id) for generation_id in response.kept]
        return dict(zip_longest(kept, times[: len(kept)]))

    async def release_jobs(self, leases: Sequence[Lease]) -> None:
        """Gives jobs back without using up an attempt."""
        request = jobs_pb2.ReleaseJobsRequest(
            worker_id=self._worker_id, leases=[lease_message(lease) for lease in leases]
        )
        with calling("cache"):
            await self._stub.ReleaseJobs(request, timeout=CALL_SECONDS)

    async def complete_jobs(self, results: Sequence[tuple[Lease, Result]]) -> list[Verdict]:
        items = [
            jobs_pb2.CompleteJobsRequest.Item(
                lease=lease_message(lease),
                stickers=[sticker_message(one) for one in result.stickers],
                markdown=result.markdown,
            )
            for lease, result in results
        ]
        request = jobs_pb2.CompleteJobsRequest(worker_id=self._worker_id, items=items)
        with calling("cache"):
            response = await self._stub.CompleteJobs(request, timeout=CALL_SECONDS)
        return [verdict_from(verdict) for verdict in response.verdicts]

    async def fail_jobs(self, failures: Sequence[tuple[Lease, Failure]]) -> list[Verdict]:
        items = [failure_message(lease, failure) for lease, failure in failures]
        request = jobs_pb2.FailJobsRequest(worker_id=self._worker_id, items=items)
        with calling("cache"):
            response = await self._stub.FailJobs(request, timeout=CALL_SECONDS)
        return [verdict_from(verdict) for verdict in response.verdicts]
