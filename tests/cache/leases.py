"""What tests of leases share: workers that give back or look in, time that passes, what is kept."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import grpc
import pytest
import structlog
from glossa.cache.v1 import jobs_pb2
from google.protobuf.duration_pb2 import Duration
from prometheus_client import REGISTRY
from structlog.testing import LogCapture

from services.cache.config import Config
from services.cache.queue_store import QueueStore
from services.cache.request_store import RequestStore
from services.cache.response_store import ResponseStore
from services.cache.retirement_store import RetirementStore
from services.cache.sweep import LEADER, Sweep
from services.runtime.database import Database, open_database
from tests.cache.conftest import House, Worker

Row = dict[str, Any]
Verdict = "jobs_pb2.JobVerdict.ValueType"

# Everything that must pass together for time to seem to have passed.
PASS_TIME = """
UPDATE cache.generations
SET created_at = created_at - $2::interval, run_after = run_after - $2::interval,
    started_at = started_at - $2::interval, leased_until = leased_until - $2::interval,
    deadline_at = deadline_at - $2::interval, completed_at = completed_at - $2::interval,
    retired_at = retired_at - $2::interval
WHERE generation_id = $1
"""


async def row(house: House, generation_id: str) -> Row:
    found = await house.admin.fetchrow(
        "SELECT *, now() AS read_at FROM cache.generations WHERE generation_id = $1", generation_id
    )
    assert found is not None
    return dict(found)


async def pass_time(house: House, generation_id: str, **passed: float) -> None:
    """As if it had happened so much earlier; no worker may look while a lease seems to run out."""
    await house.admin.execute(PASS_TIME, generation_id, timedelta(**passed))


async def let_lease_run_out(house: House, generation_id: str) -> None:
    await house.admin.execute(
        "UPDATE cache.generations SET leased_until = now() - interval '1 second'"
        " WHERE generation_id = $1",
        generation_id,
    )


async def release(worker: Worker, *jobs: jobs_pb2.Job) -> "list[jobs_pb2.JobVerdict.ValueType]":
    response = await worker.stub.ReleaseJobs(
        jobs_pb2.ReleaseJobsRequest(worker_id=worker.name, leases=[job.lease for job in jobs]),
        metadata=worker.bearer,
    )
    return list(response.verdicts)


async def fail(
    worker: Worker,
    job: jobs_pb2.Job,
    *,
    reason: str = "MODEL_DOWN",
    permanent: bool = False,
    retry_after: timedelta = timedelta(),
) -> "jobs_pb2.JobVerdict.ValueType":
    wait = Duration()
    wait.FromTimedelta(retry_after)
    item = jobs_pb2.FailJobsRequest.Item(
        lease=job.lease, reason=reason, message="no answer", permanent=permanent, retry_after=wait
    )
    response = await worker.stub.FailJobs(
        jobs_pb2.FailJobsRequest(worker_id=worker.name, items=[item]), metadata=worker.bearer
    )
    return response.verdicts[0]


async def jobs_until_empty(worker: Worker, credits_: int = 10) -> list[jobs_pb2.Job]:
    """Everything there is to be had now, as a worker gets it that only looks in."""
    stream = worker.stub.LeaseJobs(metadata=worker.bearer)
    await stream.write(
        jobs_pb2.LeaseJobsRequest(worker_id=worker.name, credits=credits_, until_empty=True)
    )
    jobs: list[jobs_pb2.Job] = []
    while isinstance(response := await stream.read(), jobs_pb2.LeaseJobsResponse):
        jobs.append(response.job)
    assert await stream.code() == grpc.StatusCode.OK
    return jobs


def lost(call: str) -> float:
    """How many late calls of this kind were counted."""
    return REGISTRY.get_sample_value("glossa_cache_leases_lost_total", {"call": call}) or 0.0


@asynccontextmanager
async def opened(databases: Mapping[str, str]) -> AsyncIterator[Database]:
    """The database as the Cache sees it."""
    async with open_database(databases["cache"], application_name="test") as database:
        yield database


def sweep_of(database: Database, **settings: Any) -> Sweep:
    """A sweep of the test's own, beside that of the running Cache."""
    clocks = Config.model_construct(**settings).clocks()
    return Sweep(
        database=database,
        queue=QueueStore(database, clocks),
        requests=RequestStore(database, clocks),
        retirements=RetirementStore(database, clocks),
        responses=ResponseStore(database),
    )


async def sweep(house: House, database: Database, **settings: Any) -> None:
    """Sweep, after the Cache's own first sweep: while that leads, another does nothing."""
    async with house.admin.transaction():
        await house.admin.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", LEADER)
    await sweep_of(database, **settings).run_once()


def capture_log(monkeypatch: pytest.MonkeyPatch, *modules: str) -> LogCapture:
    """Everything these modules log, whatever level this process logs at."""
    captured = LogCapture()
    logger = structlog.wrap_logger(
        None,
        processors=[captured],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
    )
    for module in modules:
        monkeypatch.setattr(f"{module}.log", logger)
    return captured
