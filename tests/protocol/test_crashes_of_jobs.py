"""Workers, sweep and relay, stopped before and after every commit: no payer is left behind."""

from itertools import count

import pytest
from glossa.cache.v1 import jobs_pb2

from tests.protocol.conftest import AT_REST, SWEEPING, Ground, new_id
from tests.protocol.edge import FAULTS
from tests.protocol.failpoints import MOMENTS

ENDED = "SELECT status FROM cache.generations WHERE generation_id = $1"


async def crowd(ground: Ground) -> tuple[jobs_pb2.Job, list[str]]:
    """Two payers wait for a page, and a worker has it."""
    pdf_hash = await ground.document("alice", "bob")
    ids = [new_id(), new_id()]
    for user, request_id in zip(("alice", "bob"), ids, strict=True):
        await ground.caller.insist(user, pdf_hash, request_id)
    return await ground.worker.lease(), ids


async def abandoned(ground: Ground) -> list[str]:
    """Two payers wait for a page that no worker will take again: its attempts are spent."""
    job, ids = await crowd(ground)
    await ground.house.admin.execute(
        "UPDATE cache.generations SET attempts = 3, leased_until = now() - interval '1 second'"
        " WHERE generation_id = $1",
        job.lease.generation_id,
    )
    return ids


def complete_call(ground: Ground, job: jobs_pb2.Job) -> object:
    item = jobs_pb2.CompleteJobsRequest.Item(lease=job.lease)
    request = jobs_pb2.CompleteJobsRequest(worker_id="worker-1", items=[item])
    return ground.worker.stub.CompleteJobs(request, metadata=ground.worker.bearer)


def fail_call(ground: Ground, job: jobs_pb2.Job) -> object:
    item = jobs_pb2.FailJobsRequest.Item(
        lease=job.lease, reason="MODEL_DOWN", message="no answer", permanent=True
    )
    request = jobs_pb2.FailJobsRequest(worker_id="worker-1", items=[item])
    return ground.worker.stub.FailJobs(request, metadata=ground.worker.bearer)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_result_handed_in_again_after_a_crash_is_observed_once(
    ground: Ground, moment: str
) -> None:
    for boundary in count():
        job, ids = await crowd(ground)
        ground.failpoints.arm(boundary, moment)
        if not await ground.crash(complete_call(ground, job)):
            break
        published = await ground.house.admin.fetchval(ENDED, job.lease.generation_id) == "ready"
        again = await ground.worker.complete(job, "Again")

        assert published == (moment == "after")
        lost, accepted = jobs_pb2.JOB_VERDICT_LEASE_LOST, jobs_pb2.JOB_VERDICT_ACCEPTED
        assert again == (lost if published else accepted)
        assert [await ground.ledger(one) for one in ids] == [("charged", 3), ("charged", 1)]
    assert boundary >= 1


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_failure_reported_again_after_a_crash_refunds_everyone_once(
    ground: Ground, moment: str
) -> None:
    everyone = []
    for boundary in count():
        job, ids = await crowd(ground)
        everyone += ids
        ground.failpoints.arm(boundary, moment)
        if not await ground.crash(fail_call(ground, job)):
            break
        await ground.worker.fail(job, permanent=True)
    await ground.house.until("SELECT count(*) = 0 FROM cache.outbox")

    assert boundary >= 1
    assert {status for status, _ in await ledgers(ground, everyone)} == {"refunded"}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("duty", "least"), [("sweep", 4), ("relay", 1)])
async def test_a_duty_that_dies_halfway_is_finished_by_the_next_replica(
    ground: Ground, duty: str, least: int, moment: str
) -> None:
    everyone = []
    for boundary in count():
        everyone += await abandoned(ground)
        ground.failpoints.arm(boundary, moment, duty=duty)
        async with ground.replica(**SWEEPING):
            stopped = await ground.until_stopped_or(AT_REST)
        ground.failpoints.disarm()
        if not stopped:
            break
        await ground.clear_up()
    assert boundary >= least
    assert {status for status, _ in await ledgers(ground, everyone)} == {"refunded"}


@pytest.mark.parametrize("fault", FAULTS)
async def test_whatever_happens_to_a_refund_on_the_wire_it_pays_once(
    ground: Ground, fault: str
) -> None:
    job, ids = await crowd(ground)
    ground.edge.break_next("Refund", fault)

    await ground.worker.fail(job, permanent=True)
    await ground.house.until("SELECT count(*) = 0 FROM cache.outbox")
    await ground.edge.deliver_late()

    assert {status for status, _ in await ledgers(ground, ids)} == {"refunded"}
    assert await ground.house.balance("alice") == await ground.house.balance("bob") == 1000


async def ledgers(ground: Ground, ids: list[str]) -> list[tuple[str, int]]:
    return [found for one in ids if (found := await ground.ledger(one)) is not None]
