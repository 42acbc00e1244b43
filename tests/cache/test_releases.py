"""Giving jobs back: fenced, in their old place, without using up an attempt."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any

import grpc
from glossa.cache.v1 import jobs_pb2
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub
from google.protobuf.duration_pb2 import Duration

from services.cache.__main__ import compose
from services.cache.config import Config
from services.cache.failed_store import FailedStore
from services.cache.job_handler import JobHandler
from services.cache.job_store import JobStore
from services.cache.queue import JobBell, Pace
from services.cache.status_store import StatusStore
from services.runtime.database import Database
from services.runtime.server import running
from tests.cache.conftest import House, Worker, refused
from tests.cache.leases import fail, jobs_until_empty, lost, opened, release, row
from tests.suite import Keys

ACCEPTED = jobs_pb2.JOB_VERDICT_ACCEPTED
LEASE_LOST = jobs_pb2.JOB_VERDICT_LEASE_LOST
RETRYING = jobs_pb2.JOB_VERDICT_RETRYING


async def queue_up(house: House, *users: str) -> list[str]:
    """One page of each user, in this order; their generations."""
    answers = [await house.suite.explain(user, await house.document(user)) for user in users]
    return [answer.generation_id for answer in answers]


async def test_what_is_given_back_stands_where_it_stood(house: House) -> None:
    waiting = await queue_up(house, "alice", "bob", "carol")
    job = await house.worker.lease()
    assert job.lease.generation_id == waiting[0]

    assert await release(house.worker, job) == [ACCEPTED]

    again = await jobs_until_empty(house.worker)
    assert [job.lease.generation_id for job in again] == waiting


async def test_given_back_it_is_queued_as_if_nobody_had_touched_it(house: House) -> None:
    [generation_id] = await queue_up(house, "alice")
    before = await row(house, generation_id)
    job = await house.worker.lease()
    await house.worker.renew(job)

    await release(house.worker, job)

    after = await row(house, generation_id)
    changed = {"attempts", "released", "started_at", "read_at"}
    assert {name for name in before if before[name] != after[name]} == changed
    assert (after["attempts"], after["released"], after["stage"]) == (1, 1, "queued")


async def test_three_given_back_still_leave_three_attempts_and_no_number_comes_twice(
    house: House,
) -> None:
    [generation_id] = await queue_up(house, "alice")
    numbers = []
    for _ in range(3):
        job = await house.worker.lease()
        numbers.append(job.lease.attempt)
        assert await release(house.worker, job) == [ACCEPTED]
    verdicts = []
    for _ in range(3):
        job = await house.worker.lease()
        numbers.append(job.lease.attempt)
        verdicts.append(await fail(house.worker, job))

    assert numbers == [1, 2, 3, 4, 5, 6]
    assert verdicts == [RETRYING, RETRYING, ACCEPTED]
    assert (await row(house, generation_id))["status"] == "failed"
    assert await house.balance("alice") == 1000


async def test_only_who_holds_a_job_can_give_it_back(house: House) -> None:
    [generation_id] = await queue_up(house, "alice")
    first = await house.worker.lease()
    await release(house.worker, first)
    other = Worker(house.suite, "worker-2")
    second = await other.lease()
    counted, before = lost("release"), await row(house, generation_id)

    assert await release(house.worker, first) == [LEASE_LOST]

    after = await row(house, generation_id)
    assert (after["leased_by"], after["released"]) == ("worker-2", before["released"])
    assert lost("release") == counted + 1
    assert await other.complete(second) == ACCEPTED


async def test_the_same_job_twice_in_one_call_is_given_back_once(house: House) -> None:
    [generation_id] = await queue_up(house, "alice")
    job = await house.worker.lease()

    assert await release(house.worker, job, job) == [ACCEPTED, LEASE_LOST]

    assert (await row(house, generation_id))["released"] == 1


async def test_racing_releases_and_results_agree_on_one(house: House) -> None:
    generations = await queue_up(house, *(f"user-{n}" for n in range(8)))
    jobs = await jobs_until_empty(house.worker)
    ends = [end for job in jobs for end in (house.worker.complete(job), fail(house.worker, job))]

    verdicts = await asyncio.gather(*ends, *(release(house.worker, job) for job in jobs))

    flat = [
        one for verdict in verdicts for one in (verdict if isinstance(verdict, list) else [verdict])
    ]
    assert flat.count(LEASE_LOST) == 2 * len(generations)


async def test_a_bad_release_names_its_field(house: House) -> None:
    request = jobs_pb2.ReleaseJobsRequest(
        worker_id="worker-1", leases=[jobs_pb2.Lease(generation_id="x", attempt=1)]
    )
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await house.suite.jobs.ReleaseJobs(request, metadata=house.suite.bearer("worker"))

    assert "leases[0].generation_id" in seen[0].details()


async def one_request(**fields: Any) -> AsyncIterator[jobs_pb2.LeaseJobsRequest]:
    """A worker that asks once and then listens."""
    yield jobs_pb2.LeaseJobsRequest(worker_id="worker-1", **fields)
    await asyncio.Event().wait()


def handler_over(database: Database) -> JobHandler:
    return JobHandler(
        JobStore(database, Config.model_construct().clocks()),
        statuses=StatusStore(database),
        failed=FailedStore(database, prompt_version="1", model="none"),
        bell=JobBell(),
        pace=Pace(),
        relay_wake=lambda: None,
        poll_seconds=60,
    )


async def test_jobs_that_a_broken_stream_did_not_take_come_back_at_once(
    house: House, databases: Mapping[str, str]
) -> None:
    waiting = await queue_up(house, "alice", "bob", "carol")
    async with opened(databases) as database:
        handler = handler_over(database)
        jobs: Any = handler.LeaseJobs(one_request(credits=10), None)  # type: ignore[arg-type]
        async with aclosing(jobs):
            sent = (await anext(jobs)).job  # and the stream breaks

    assert sent.lease.generation_id == waiting[0]
    rows = [await row(house, generation_id) for generation_id in waiting]
    # The first may have arrived, so its lease decides; the others were never sent.
    assert [one["leased_by"] for one in rows] == ["worker-1", None, None]
    assert [one["attempts"] - one["released"] for one in rows] == [1, 0, 0]
    again = await jobs_until_empty(house.worker)
    assert [job.lease.generation_id for job in again] == waiting[1:]


async def unacknowledged(house: House, generation_ids: list[str]) -> list[tuple[bool, int]]:
    """Whether each is leased, and how many attempts were made in earnest."""
    rows = [await row(house, generation_id) for generation_id in generation_ids]
    return [(one["leased_by"] is not None, one["attempts"] - one["released"]) for one in rows]


def batch_request(credits_: int = 0, received: int = 0, **more: Any) -> jobs_pb2.LeaseJobsRequest:
    return jobs_pb2.LeaseJobsRequest(
        worker_id="worker-1",
        credits=credits_,
        batched=True,
        acknowledges=True,
        received=received,
        **more,
    )


async def test_of_a_batch_that_breaks_off_only_what_was_acknowledged_stays_leased(
    house: House,
) -> None:
    waiting = await queue_up(house, "alice", "bob", "carol")
    stream = house.worker.stub.LeaseJobs(metadata=house.worker.bearer)
    await stream.write(batch_request(2))
    first = await stream.read()
    assert isinstance(first, jobs_pb2.LeaseJobsResponse)
    assert len(first.jobs) == 2
    await stream.write(batch_request(1, received=2))
    second = await stream.read()
    assert isinstance(second, jobs_pb2.LeaseJobsResponse)

    stream.cancel()

    await house.until("SELECT count(*) = 1 FROM cache.generations WHERE released = 1")
    assert await unacknowledged(house, waiting) == [(True, 1), (True, 1), (False, 0)]
    # And it goes to the next at once, without an attempt having been used up.
    again = await house.worker.lease()
    assert again.lease.generation_id == waiting[2]


async def test_a_worker_that_ends_its_stream_leaves_nothing_on_the_way(house: House) -> None:
    waiting = await queue_up(house, "alice")
    stream = house.worker.stub.LeaseJobs(metadata=house.worker.bearer)
    await stream.write(batch_request(1))
    await stream.read()

    await stream.done_writing()

    assert await stream.read() is grpc.aio.EOF
    assert await unacknowledged(house, waiting) == [(False, 0)]


async def test_a_worker_that_promised_to_speak_and_is_silent_gets_no_more_jobs(
    house: House,
) -> None:
    stream = house.worker.stub.LeaseJobs(metadata=house.worker.bearer)
    # Its connection lives on, but it does not speak: before a page can be asked for, it is overdue.
    await stream.write(batch_request(5, heartbeat_every=Duration(nanos=1_000_000)))
    waiting = await queue_up(house, "alice")
    other = await Worker(house.suite, "worker-2").lease()
    assert other.lease.generation_id == waiting[0]

    # It wakes up, and gets its jobs again.
    await stream.write(batch_request(0, heartbeat_every=Duration(seconds=60)))
    more = await queue_up(house, "bob")
    response = await stream.read()
    assert isinstance(response, jobs_pb2.LeaseJobsResponse)
    assert [job.lease.generation_id for job in response.jobs] == more
    stream.cancel()


async def test_a_promise_that_makes_no_sense_is_refused(house: House) -> None:
    stream = house.worker.stub.LeaseJobs(metadata=house.worker.bearer)
    await stream.write(batch_request(1, heartbeat_every=Duration(seconds=-1)))

    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
        await stream.read()

    assert "heartbeat_every" in seen[0].details()


async def test_who_only_looks_in_gets_everything_and_is_sent_home(house: House) -> None:
    waiting = await queue_up(house, "alice", "bob", "carol")
    stream = house.worker.stub.LeaseJobs(metadata=house.worker.bearer)

    async def ask(credits_: int) -> None:
        await stream.write(
            jobs_pb2.LeaseJobsRequest(worker_id="worker-1", credits=credits_, until_empty=True)
        )

    async def take() -> str:
        response = await stream.read()
        assert isinstance(response, jobs_pb2.LeaseJobsResponse)
        return response.job.lease.generation_id

    await ask(2)
    taken = [await take(), await take()]
    await ask(1)  # with both hands full it was not sent home: there was more
    taken.append(await take())
    await ask(1)

    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() == grpc.StatusCode.OK
    assert taken == waiting


async def test_a_draining_cache_ends_its_streams_and_keeps_the_leases(
    house: House, databases: Mapping[str, str], keys: Keys
) -> None:
    config = Config(
        database_url=databases["cache"],
        verify_key_file=keys.verify_key_file,
        token_file=keys.token_file("cache"),
        registry_address=house.suite.addresses["registry"],
        quota_address=house.suite.addresses["quota"],
        poll_seconds=60,
        # Longer than the test may take: only streams that end let it end.
        drain_seconds=600,
    )
    await queue_up(house, "alice")
    async with AsyncExitStack() as exits:
        async with running("cache", config, compose) as replica:
            channel = await exits.enter_async_context(grpc.aio.insecure_channel(replica.address))
            stream = JobServiceStub(channel).LeaseJobs(metadata=house.worker.bearer)
            await stream.write(jobs_pb2.LeaseJobsRequest(worker_id="worker-1", credits=5))
            response = await stream.read()
            assert isinstance(response, jobs_pb2.LeaseJobsResponse)
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK

    # Another replica takes the result.
    assert await house.worker.complete(response.job) == ACCEPTED
