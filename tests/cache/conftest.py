"""Registry, Quota and Cache without a worker: the test is the worker."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub
from google.rpc import error_details_pb2, status_pb2
from prometheus_client import REGISTRY

from services.cache.__main__ import compose as compose_cache
from services.runtime.server import running
from tests.suite import Keys, Suite, lecture, running_suite

# Long enough for a slow machine to act within a lease that the test wants to keep.
PATIENT = {"backoff_seconds": (0,), "backoff_jitter_seconds": 0, "poll_seconds": 0.05}


class Worker:
    """A worker as the Cache sees it."""

    def __init__(self, suite: Suite, name: str = "worker-1") -> None:
        self.stub: JobServiceStub = suite.jobs
        self.name = name
        self.bearer = suite.bearer("worker")

    @asynccontextmanager
    async def leasing(self, credits_: int = 1) -> AsyncIterator[Any]:
        stream = self.stub.LeaseJobs(metadata=self.bearer)
        await stream.write(jobs_pb2.LeaseJobsRequest(worker_id=self.name, credits=credits_))
        try:
            yield stream
        finally:
            stream.cancel()

    async def lease(self) -> jobs_pb2.Job:
        """Wait for one job."""
        async with self.leasing() as stream:
            response = await stream.read()
            assert isinstance(response, jobs_pb2.LeaseJobsResponse)
            return response.job

    async def complete(
        self, job: jobs_pb2.Job, title: str = "Entropy"
    ) -> "jobs_pb2.JobVerdict.ValueType":
        sticker = cache_pb2.Sticker(
            sticker_id="s1",
            kind=cache_pb2.STICKER_KIND_TERM,
            title=title,
            body_markdown="A measure of disorder.",
            anchor=cache_pb2.Anchor(quote="Entropy"),
        )
        item = jobs_pb2.CompleteJobsRequest.Item(lease=job.lease, stickers=[sticker])
        response = await self.stub.CompleteJobs(
            jobs_pb2.CompleteJobsRequest(worker_id=self.name, items=[item]), metadata=self.bearer
        )
        return response.verdicts[0]

    async def fail(self, job: jobs_pb2.Job, *, permanent: bool) -> "jobs_pb2.JobVerdict.ValueType":
        item = jobs_pb2.FailJobsRequest.Item(
            lease=job.lease, reason="MODEL_DOWN", message="no answer", permanent=permanent
        )
        response = await self.stub.FailJobs(
            jobs_pb2.FailJobsRequest(worker_id=self.name, items=[item]), metadata=self.bearer
        )
        return response.verdicts[0]

    async def renew(self, job: jobs_pb2.Job) -> list[str]:
        progress = jobs_pb2.LeaseProgress(
            lease=job.lease, stage=cache_pb2.STAGE_EXPLAINING, done=1, total=3
        )
        response = await self.stub.RenewLeases(
            jobs_pb2.RenewLeasesRequest(worker_id=self.name, leases=[progress]),
            metadata=self.bearer,
        )
        return list(response.kept)


class House:
    """The suite without a worker, its database as an admin sees it, and a document."""

    def __init__(self, suite: Suite, admin: "asyncpg.Connection[Any]") -> None:
        self.suite = suite
        self.admin = admin
        self.worker = Worker(suite)

    async def document(self, *owners: str) -> str:
        """A new document held by these users; its hash. No other has the same words on its page."""
        content = lecture(f"Entropy is a measure of disorder. {uuid4().hex}")
        uploads = [await self.suite.upload(owner, content) for owner in owners]
        return uploads[0].file.pdf_hash

    async def balance(self, user: str) -> int:
        """What the ledger says, once nothing is waiting to be refunded."""
        await self.until("SELECT count(*) = 0 FROM cache.outbox")
        found: int | None = await self.admin.fetchval(
            "SELECT balance_units FROM quota.accounts WHERE user_id = $1", user
        )
        return 1000 if found is None else found

    async def forget_windows(self) -> None:
        """Let users ask as often as a test needs it."""
        await self.admin.execute("DELETE FROM quota.ai_request_log")

    @asynccontextmanager
    async def another_cache(self) -> AsyncIterator[Suite]:
        """The same suite through another replica of the Cache."""
        config = self.suite.cache_config
        assert config is not None
        async with (
            running("cache", config, compose_cache) as replica,
            AsyncExitStack() as exits,
        ):
            addresses = {**self.suite.addresses, "cache": replica.address}
            yield Suite(addresses=addresses, keys=self.suite.keys, exits=exits, cache_config=config)

    async def until(self, question: str, *arguments: object) -> None:
        """Wait until the database says yes."""
        async with asyncio.timeout(20):
            while not await self.admin.fetchval(question, *arguments):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def assert_sound(self) -> None:
        """Nobody paid for nothing or waits for nothing, and balances are the sums of entries."""
        await self.until("SELECT count(*) = 0 FROM cache.outbox")
        drifted = await self.admin.fetch(
            "SELECT user_id FROM quota.accounts AS account WHERE balance_units <>"
            " (SELECT sum(units) FROM quota.ledger_entries AS entry"
            "  WHERE entry.user_id = account.user_id)"
        )
        unserved = await self.admin.fetch(
            "SELECT request_id FROM quota.explain_requests AS charge"
            " WHERE charge.status = 'charged' AND charge.quota_units > 0"
            " AND charge.outcome <> 'cached' AND NOT EXISTS"
            " (SELECT FROM cache.requests AS request WHERE request.request_id = charge.request_id"
            "  AND request.state IN ('waiting', 'served', 'intent'))"
        )
        stranded = await self.admin.fetch(
            "SELECT request_id FROM cache.requests AS request"
            " JOIN cache.generations AS generation USING (generation_id)"
            " WHERE request.state = 'waiting' AND generation.status <> 'generating'"
        )
        assert (drifted, unserved, stranded) == ([], [], [])


def sweeps() -> float:
    """How many sweeps this process has seen to their end; a test must not meet the first one."""
    by = ("us", "another")
    return sum(REGISTRY.get_sample_value("glossa_cache_sweeps_total", {"by": n}) or 0 for n in by)


async def until_swept(before: float) -> None:
    """Wait for the end of the sweep that every Cache begins with."""
    async with asyncio.timeout(20):
        while sweeps() == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def open_house(
    admin_url: str, databases: Mapping[str, str], keys: Keys, folder: Path, **cache: Any
) -> AsyncIterator[House]:
    admin = await asyncpg.connect(admin_url)
    swept = sweeps()
    try:
        async with running_suite(
            databases, keys, folder, with_worker=False, cache={**PATIENT, **cache}
        ) as suite:
            house = House(suite, admin)
            await until_swept(swept)
            yield house
            await house.assert_sound()
    finally:
        await admin.close()


@pytest.fixture
async def house(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> AsyncIterator[House]:
    async with open_house(admin_url, databases, keys, tmp_path) as house:
        yield house


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The google.rpc details of a refusal, by the name of their message."""
    status = status_pb2.Status()
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            status.ParseFromString(value)
    found: dict[str, Any] = {}
    for detail in status.details:
        message = getattr(error_details_pb2, detail.type_url.rpartition(".")[2])()
        detail.Unpack(message)
        found[type(message).__name__] = message
    return found


@asynccontextmanager
async def refused(code: grpc.StatusCode, reason: str) -> AsyncIterator[list[Any]]:
    """The block is refused with this code and reason; the list then holds the error."""
    seen: list[Any] = []
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield seen
    seen.append(caught.value)
    assert caught.value.code() == code, caught.value.details()
    assert details(caught.value)["ErrorInfo"].reason == reason
