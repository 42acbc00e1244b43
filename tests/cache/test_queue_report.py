"""What admins are told about the queue, and about leases that came to grief."""

from typing import Any

import grpc
import pytest
from glossa.cache.v1 import cache_pb2 as pb

from services.cache import queue_store
from services.cache.domain import Lane
from services.cache.gauge_store import GaugeStore
from tests.cache.conftest import House, Worker, refused
from tests.cache.leases import let_lease_run_out, opened, pass_time, release, sweep


async def report(house: House) -> pb.DescribeQueueResponse:
    return await house.suite.cache.DescribeQueue(
        pb.DescribeQueueRequest(), metadata=house.suite.bearer("admin")
    )


async def losses(house: House) -> list[tuple[int, int, int]]:
    answer = await house.suite.cache.ListLeaseLosses(
        pb.ListLeaseLossesRequest(), metadata=house.suite.bearer("admin")
    )
    return [(day.leases_expired, day.attempts_spent, day.queue_timeouts) for day in answer.days]


def counts(lane: Any) -> tuple[str, int, int, int, int]:
    return lane.name, lane.waiting, lane.leased, lane.retrying, lane.expired


async def test_an_empty_queue_has_both_lanes(house: House) -> None:
    answer = await report(house)

    assert [counts(lane) for lane in answer.lanes] == [
        ("interactive", 0, 0, 0, 0),
        ("background", 0, 0, 0, 0),
    ]
    assert not any(lane.HasField("oldest_wait") for lane in answer.lanes)
    assert answer.refunds_due == 0


async def test_every_job_is_counted_once_in_its_lane(house: House, databases: Any) -> None:
    pdf_hash = await house.document("ann")
    other = await house.document("ann")
    jobs = []
    for number, (document, background) in enumerate(
        [(pdf_hash, False), (other, False)]
        + [(await house.document("bob"), True) for _ in range(3)]
    ):
        user = "ann" if number < 2 else "bob"
        asked = await house.suite.explain(user, document, background=background)
        jobs.append(asked.generation_id)
    first = await house.worker.lease()
    assert first.lease.generation_id == jobs[0]
    await house.admin.execute(
        "UPDATE cache.generations SET run_after = run_after - interval '90 s'"
        " WHERE generation_id = $1",
        jobs[2],
    )
    await house.admin.execute(
        "UPDATE cache.generations SET turn = NULL, stage = 'retrying',"
        " run_after = now() + interval '1 hour' WHERE generation_id = $1",
        jobs[3],
    )
    await house.admin.execute(
        "UPDATE cache.generations SET leased_by = 'frozen', attempts = 1,"
        " leased_until = now() - interval '1 s', deadline_at = now(),"
        " run_after = run_after - interval '240 s' WHERE generation_id = $1",
        jobs[4],
    )

    first_lane, second_lane = (await report(house)).lanes

    assert counts(first_lane) == ("interactive", 1, 1, 0, 0)
    assert counts(second_lane) == ("background", 2, 0, 1, 1)
    # The frozen worker's job is older, but waited for no worker.
    assert 90 <= second_lane.oldest_wait.seconds < 240
    async with opened(databases) as database:
        gauge = (await GaugeStore(database).count_queue())[Lane.BACKGROUND]
    assert 90 <= gauge.oldest_seconds < 240


async def test_a_queue_is_counted_so_far_and_no_further(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_store, "MOST_COUNTED", 2)
    for number in range(4):
        await house.suite.explain("ann", await house.document("ann"), background=number > 0)

    answer = await report(house)

    assert [lane.waiting for lane in answer.lanes] == [1, 1]


async def test_refunds_are_counted_so_far_and_no_further(house: House) -> None:
    # Not committed, or the relay would deliver them.
    transaction = house.admin.transaction()
    await transaction.start()
    await house.admin.execute(
        "INSERT INTO cache.outbox (request_id, user_id, reason)"
        " SELECT gen_random_uuid(), 'user', 'request_aborted' FROM generate_series(1, 3)"
    )
    counted = [
        await house.admin.fetchval(queue_store.COUNT_REFUNDS_DUE, most) for most in (2, 3, 4)
    ]
    await transaction.rollback()

    assert counted == [2, 3, 3]


async def test_a_lease_that_ran_out_is_counted_when_its_page_is_ready(house: House) -> None:
    asked = await house.suite.explain("ann", await house.document("ann"))
    given_back = await house.worker.lease()
    await release(house.worker, given_back)
    await house.worker.lease()
    await let_lease_run_out(house, asked.generation_id)
    job = await Worker(house.suite, "worker-2").lease()
    assert await losses(house) == []

    await house.worker.complete(job)

    assert await losses(house) == [(1, 0, 0)]


async def test_failed_attempts_and_invalidations_are_no_lost_leases(house: House) -> None:
    pdf_hash = await house.document("ann")
    await house.suite.explain("ann", pdf_hash)
    await house.worker.fail(await house.worker.lease(), permanent=False)
    await house.worker.fail(await house.worker.lease(), permanent=True)
    other = await house.document("ann")
    await house.suite.explain("ann", other)
    await house.worker.lease()
    await house.suite.cache.InvalidateGenerations(
        pb.InvalidateGenerationsRequest(pdf_hash=other), metadata=house.suite.bearer("admin")
    )

    assert await losses(house) == []


async def test_what_the_sweep_gives_up_is_counted_with_its_cause(
    house: House, databases: Any
) -> None:
    spent = await house.suite.explain("ann", await house.document("ann"))
    for number in range(3):
        await Worker(house.suite, f"worker-{number}").lease()
        await let_lease_run_out(house, spent.generation_id)
    waiting = await house.suite.explain("bob", await house.document("bob"))
    await pass_time(house, waiting.generation_id, hours=2)

    async with opened(databases) as database:
        await sweep(house, database)
        await sweep(house, database)

    assert await losses(house) == [(3, 1, 1)]
    assert (await house.suite.generation(spent.generation_id)).error.reason == "ATTEMPTS_SPENT"
    assert (await house.suite.generation(waiting.generation_id)).error.reason == "QUEUE_TIMEOUT"


@pytest.mark.parametrize("days", [-1, 401])
async def test_days_out_of_range_are_refused(house: House, days: int) -> None:
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"):
        await house.suite.cache.ListLeaseLosses(
            pb.ListLeaseLossesRequest(days=days), metadata=house.suite.bearer("admin")
        )


async def test_only_admins_are_told(house: House) -> None:
    for scope in ("gateway", "worker", "cache"):
        async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
            await house.suite.cache.DescribeQueue(
                pb.DescribeQueueRequest(), metadata=house.suite.bearer(scope)
            )
