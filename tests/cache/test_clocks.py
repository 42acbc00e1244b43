"""The clocks of a generation: queue wait, lease, deadline of an attempt, and backoff."""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from pydantic import ValidationError

from services.cache.config import Config
from services.cache.job_domain import Failure, Lease
from services.cache.queue_store import QueueStore
from tests.cache.conftest import House, open_house
from tests.cache.leases import (
    fail,
    jobs_until_empty,
    opened,
    pass_time,
    release,
    row,
    sweep,
)
from tests.suite import Keys

EARNEST = {"backoff_seconds": (60, 300), "backoff_jitter_seconds": 30}
CLOCKS = Config.model_construct().clocks()
HOUR = 3600.0


@pytest.fixture
async def patient_house(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> AsyncIterator[House]:
    """Where failed attempts wait as long as in earnest."""
    async with open_house(admin_url, databases, keys, tmp_path, **EARNEST) as house:
        yield house


async def queue_up(house: House) -> str:
    return (await house.suite.explain("alice", await house.document("alice"))).generation_id


@pytest.mark.parametrize(
    ("tried", "spread", "retry_after", "seconds"),
    [
        (1, 0.0, 0, 60),
        (1, 0.5, 0, 75),
        (1, 1.0, 0, 90),
        (2, 0.0, 0, 300),
        (2, 0.5, 0, 315),
        (2, 1.0, 0, 330),
        (3, 0.5, 0, None),  # three attempts and no more
        (4, 0.5, 0, None),
        (1, 0.0, 20, 60),  # the provider asks for less than we wait anyway
        (1, 0.0, 61, 61),
        (2, 1.0, 600, 600),
        (1, 0.0, HOUR, HOUR),
        (1, 0.0, 24 * HOUR, HOUR),  # nobody makes a reader wait longer than an hour
        (3, 0.0, 600, None),
    ],
)
def test_how_long_a_failed_attempt_waits_for_the_next(
    tried: int, spread: float, retry_after: float, seconds: float | None
) -> None:
    delay = CLOCKS.retry_delay(failure(retry_after=retry_after), tried=tried, spread=spread)

    assert delay == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize("tried", [1, 2, 3])
def test_what_failed_for_good_is_not_tried_again(tried: int) -> None:
    hopeless = failure(permanent=True, retry_after=10)

    assert CLOCKS.retry_delay(hopeless, tried=tried, spread=0.0) is None


def failure(*, permanent: bool = False, retry_after: float = 0) -> Failure:
    return Failure(
        lease=Lease(generation_id=uuid4(), attempt=1),
        reason="MODEL_DOWN",
        message="",
        permanent=permanent,
        retry_after=timedelta(seconds=retry_after),
    )


@pytest.mark.parametrize(
    ("images", "chunks", "seconds"),
    [
        (0, 1, 75),
        (1, 1, 100),
        (2, 3, 155),
        (0, 16, 300),
        (8, 2, 290),
        (9, 1, 300),
        (10_000, 1000, 300),
    ],
)
async def test_an_attempt_has_time_by_images_and_chunks_up_to_a_cap(
    house: House, images: int, chunks: int, seconds: int
) -> None:
    generation_id = await queue_up(house)
    await house.admin.execute(
        "UPDATE cache.generations SET images_count = $1, chunks = $2", images, chunks
    )

    job = await house.worker.lease()

    leased = await row(house, generation_id)
    assert leased["deadline_at"] - leased["started_at"] == timedelta(seconds=seconds)
    assert job.time_left.ToTimedelta() == timedelta(seconds=seconds)
    assert job.deadline_at.ToDatetime(tzinfo=leased["deadline_at"].tzinfo) == leased["deadline_at"]
    assert leased["leased_until"] - leased["started_at"] == timedelta(seconds=30)


async def renew(house: House, job: jobs_pb2.Job, *, chunks: int) -> timedelta:
    """How much time the Cache says is left."""
    progress = jobs_pb2.LeaseProgress(
        lease=job.lease, stage=cache_pb2.STAGE_EXPLAINING, chunks=chunks
    )
    response = await house.suite.jobs.RenewLeases(
        jobs_pb2.RenewLeasesRequest(worker_id="worker-1", leases=[progress]),
        metadata=house.suite.bearer("worker"),
    )
    [time_left] = response.time_left
    return time_left.ToTimedelta()


async def test_more_chunks_than_expected_make_an_attempt_longer_and_fewer_never_shorter(
    house: House,
) -> None:
    generation_id = await queue_up(house)
    job = await house.worker.lease()
    allowed = []
    for chunks in (5, 2, 0, 100, 1):
        left = await renew(house, job, chunks=chunks)
        now = await row(house, generation_id)
        allowed.append((now["deadline_at"] - now["started_at"]).total_seconds())
        # What it is told is counted from when the Cache looked, a moment before we do.
        assert now["deadline_at"] - now["read_at"] <= left <= timedelta(seconds=allowed[-1])

    assert allowed == [135, 135, 135, 300, 300]


async def test_the_next_attempt_knows_how_many_chunks_there_are(house: House) -> None:
    await queue_up(house)
    job = await house.worker.lease()
    await renew(house, job, chunks=5)
    await fail(house.worker, job)

    assert (await house.worker.lease()).time_left.ToTimedelta() == timedelta(seconds=135)


async def test_no_lease_lasts_longer_than_its_attempt(house: House) -> None:
    generation_id = await queue_up(house)
    job = await house.worker.lease()
    await pass_time(house, generation_id, seconds=70)

    assert await renew(house, job, chunks=0) <= timedelta(seconds=5)

    now = await row(house, generation_id)
    assert now["leased_until"] == now["deadline_at"]


def test_leases_longer_than_the_shortest_attempt_are_refused_at_start() -> None:
    values: dict[str, Any] = {
        "database_url": "postgresql://nobody@127.0.0.1/nothing",
        "verify_key_file": "verify.pem",
        "registry_address": "127.0.0.1:1",
        "quota_address": "127.0.0.1:1",
    }
    assert Config(**values, lease_seconds=60).lease_seconds == 60
    with pytest.raises(ValidationError, match="lease_seconds"):
        Config(**values, lease_seconds=61)


async def test_after_its_deadline_a_lease_is_not_renewed(house: House) -> None:
    generation_id = await queue_up(house)
    job = await house.worker.lease()
    await pass_time(house, generation_id, seconds=76)

    assert await house.worker.renew(job) == []


async def test_a_failed_attempt_waits_a_minute_then_five_and_a_little_more(
    patient_house: House,
) -> None:
    house = patient_house
    generation_id = await queue_up(house)
    for least, most in ((60, 90), (300, 330)):
        await fail(house.worker, await house.worker.lease())
        waits = await row(house, generation_id)
        failed_at = datetime.fromisoformat(json.loads(waits["failures"])[-1]["failed_at"])
        delay = (waits["run_after"] - failed_at).total_seconds()
        assert least <= delay <= most
        assert await jobs_until_empty(house.worker) == []

        await pass_time(house, generation_id, seconds=most + 1)
        await house.until("SELECT turn IS NOT NULL FROM cache.generations")


async def test_a_job_takes_its_turn_only_when_its_backoff_is_over(
    patient_house: House, databases: Mapping[str, str]
) -> None:
    house = patient_house
    generation_id = await queue_up(house)
    await fail(house.worker, await house.worker.lease())
    async with opened(databases) as database:
        queue = QueueStore(database, CLOCKS)
        assert await queue.readmit_due() == 0
        assert (await row(house, generation_id))["turn"] is None
        assert await jobs_until_empty(house.worker) == []

        await pass_time(house, generation_id, seconds=91)
        await queue.readmit_due()

    [job] = await jobs_until_empty(house.worker)
    assert job.lease.attempt == 2


async def test_a_providers_wish_to_wait_is_kept_up_to_an_hour(patient_house: House) -> None:
    house = patient_house
    generation_id = await queue_up(house)
    job = await house.worker.lease()

    await fail(house.worker, job, retry_after=timedelta(hours=20))

    waits = await row(house, generation_id)
    failed_at = datetime.fromisoformat(json.loads(waits["failures"])[-1]["failed_at"])
    assert waits["run_after"] - failed_at == timedelta(hours=1)


async def swept_status(
    house: House, databases: Mapping[str, str], generation_id: str
) -> tuple[str, str | None]:
    async with opened(databases) as database:
        await sweep(house, database)
    swept = await row(house, generation_id)
    return swept["status"], swept["error_reason"]


async def test_nobody_waits_in_the_queue_for_longer_than_an_hour(
    house: House, databases: Mapping[str, str]
) -> None:
    generation_id = await queue_up(house)
    await pass_time(house, generation_id, minutes=59)
    assert await swept_status(house, databases, generation_id) == ("generating", None)

    await pass_time(house, generation_id, minutes=2)
    assert await swept_status(house, databases, generation_id) == ("failed", "QUEUE_TIMEOUT")
    assert await house.balance("alice") == 1000


async def test_what_a_worker_holds_is_not_overdue_however_long_it_waited(
    house: House, databases: Mapping[str, str]
) -> None:
    generation_id = await queue_up(house)
    await pass_time(house, generation_id, minutes=61)
    job = await house.worker.lease()

    assert await swept_status(house, databases, generation_id) == ("generating", None)
    assert await house.worker.complete(job) == jobs_pb2.JOB_VERDICT_ACCEPTED


async def test_a_job_given_back_after_a_long_wait_gets_another_chance(
    house: House, databases: Mapping[str, str]
) -> None:
    generation_id = await queue_up(house)
    await pass_time(house, generation_id, minutes=61)
    await release(house.worker, await house.worker.lease())

    assert await swept_status(house, databases, generation_id) == ("generating", None)
    await pass_time(house, generation_id, minutes=61)
    assert await swept_status(house, databases, generation_id) == ("failed", "QUEUE_TIMEOUT")


async def test_a_backoff_does_not_count_as_waiting_for_a_worker(
    patient_house: House, databases: Mapping[str, str]
) -> None:
    house = patient_house
    generation_id = await queue_up(house)
    await pass_time(house, generation_id, minutes=59)
    await fail(house.worker, await house.worker.lease())
    await pass_time(house, generation_id, minutes=50)

    assert await swept_status(house, databases, generation_id) == ("generating", "MODEL_DOWN")
