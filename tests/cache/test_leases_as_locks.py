"""Leases keep the promises of a processing lock, row by row of its table of edge cases."""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2
from structlog.testing import LogCapture

from tests.cache.conftest import House, Worker, open_house
from tests.cache.leases import (
    Row,
    capture_log,
    fail,
    jobs_until_empty,
    let_lease_run_out,
    lost,
    opened,
    pass_time,
    release,
    row,
    sweep,
)
from tests.suite import Keys, lecture

ACCEPTED = jobs_pb2.JOB_VERDICT_ACCEPTED
LEASE_LOST = jobs_pb2.JOB_VERDICT_LEASE_LOST
RETRYING = jobs_pb2.JOB_VERDICT_RETRYING
LEASE_COLUMNS = ("leased_by", "leased_until", "deadline_at")


@pytest.fixture
async def waiting_house(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> AsyncIterator[House]:
    """A house in which a failed attempt waits for minutes, as in earnest."""
    backoff = {"backoff_seconds": (60, 300)}
    async with open_house(admin_url, databases, keys, tmp_path, **backoff) as house:
        yield house


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> LogCapture:
    modules = ("job_handler", "explain", "sweep")
    return capture_log(monkeypatch, *(f"services.cache.{module}" for module in modules))


def locks(log: LogCapture) -> list[tuple[str, str]]:
    """What was logged about locks: event and status, in order."""
    return [
        (entry["event"], entry.get("status", ""))
        for entry in log.entries
        if entry["event"].startswith(("lock_", "heartbeat_"))
    ]


async def started(house: House, *users: str) -> tuple[str, str]:
    """A page that these users hold and the first has asked for: its hash and generation."""
    pdf_hash = await house.document(*users)
    answer = await house.suite.explain(users[0], pdf_hash)
    assert answer.outcome == quota_pb2.OUTCOME_GENERATED
    return pdf_hash, answer.generation_id


async def test_while_a_lease_holds_nobody_else_gets_the_job_and_a_second_ask_joins(
    house: House,
) -> None:
    pdf_hash, generation_id = await started(house, "alice", "bob")
    await house.worker.lease()
    other = Worker(house.suite, "worker-2")

    second = await house.suite.explain("bob", pdf_hash)

    assert (second.outcome, second.generation_id) == (quota_pb2.OUTCOME_JOINED, generation_id)
    assert await jobs_until_empty(other) == []
    assert (await row(house, generation_id))["attempts"] == 1


async def test_a_lease_that_ran_out_is_taken_over_and_its_former_holder_changes_nothing(
    house: House,
) -> None:
    _, generation_id = await started(house, "alice")
    late, prompt = house.worker, Worker(house.suite, "worker-2")
    stale = await late.lease()
    await let_lease_run_out(house, generation_id)
    [fresh] = await jobs_until_empty(prompt)
    calls = ("renew", "complete", "fail", "release")
    counted, before = [lost(call) for call in calls], await row(house, generation_id)

    assert (stale.lease.attempt, fresh.lease.attempt) == (1, 2)
    assert await late.renew(stale) == []
    assert await late.complete(stale, "Stale") == LEASE_LOST
    assert await fail(late, stale, permanent=True) == LEASE_LOST
    assert await release(late, stale) == [LEASE_LOST]

    assert unchanged(before, await row(house, generation_id))
    assert [lost(call) for call in calls] == [count + 1 for count in counted]
    assert await prompt.complete(fresh, "Fresh") == ACCEPTED
    generation = await house.suite.generation(generation_id)
    assert [sticker.title for sticker in generation.stickers] == ["Fresh"]


async def test_heartbeats_hold_a_lease_past_its_first_end(house: House) -> None:
    _, generation_id = await started(house, "alice")
    job = await house.worker.lease()
    for _ in range(3):  # three times 20 seconds outlast a lease of 30
        await pass_time(house, generation_id, seconds=20)
        assert await house.worker.renew(job) == [generation_id]

    assert await jobs_until_empty(Worker(house.suite, "worker-2")) == []
    assert await house.worker.complete(job) == ACCEPTED
    assert (await row(house, generation_id))["attempts"] == 1


async def test_a_heartbeat_keeps_a_long_job_but_not_a_hung_one(house: House) -> None:
    _, generation_id = await started(house, "alice")
    job = await house.worker.lease()
    counted = lost("renew")
    await house.admin.execute(
        "UPDATE cache.generations SET deadline_at = now() - interval '1 second'"
    )
    before = await row(house, generation_id)
    assert before["leased_until"] > before["read_at"]

    assert await house.worker.renew(job) == []

    assert unchanged(before, await row(house, generation_id))
    assert lost("renew") == counted + 1


async def test_a_worker_that_vanishes_on_the_last_attempt_costs_nobody_anything(
    house: House, databases: Mapping[str, str], log: LogCapture
) -> None:
    pdf_hash, generation_id = await started(house, "alice", "bob")
    await house.suite.explain("bob", pdf_hash)
    async with opened(databases) as database:
        for attempt in (1, 2, 3):
            [job] = await jobs_until_empty(Worker(house.suite, f"worker-{attempt}"))
            assert job.lease.attempt == attempt
            await let_lease_run_out(house, generation_id)
            if attempt < 3:
                await sweep(house, database)  # leaves it to the next worker
        assert await jobs_until_empty(Worker(house.suite, "worker-4")) == []
        await sweep(house, database)

    failed = await row(house, generation_id)
    assert (failed["status"], failed["error_reason"]) == ("failed", "ATTEMPTS_SPENT")
    assert [await house.balance(user) for user in ("alice", "bob")] == [1000, 1000]
    assert locks(log)[-1] == ("lock_released", "ATTEMPTS_SPENT")


async def test_what_is_ready_is_never_worked_on_again(house: House) -> None:
    pdf_hash, generation_id = await started(house, "alice", "bob")
    job = await house.worker.lease()
    assert await house.worker.complete(job, "First") == ACCEPTED
    before = await row(house, generation_id)

    assert await jobs_until_empty(house.worker) == []
    assert await house.worker.complete(job, "Second") == LEASE_LOST
    again = await house.suite.explain("bob", pdf_hash)

    assert again.outcome == quota_pb2.OUTCOME_CACHED
    assert [sticker.title for sticker in again.stickers] == ["First"]
    assert unchanged(before, await row(house, generation_id))


async def test_what_failed_for_lack_of_luck_may_be_started_again(house: House) -> None:
    pdf_hash, generation_id = await started(house, "alice")
    for _ in range(3):
        await fail(house.worker, await house.worker.lease())

    again = await house.suite.explain("alice", pdf_hash)

    assert again.outcome == quota_pb2.OUTCOME_GENERATED
    assert again.generation_id != generation_id
    assert (await house.worker.lease()).lease.attempt == 1
    assert await house.balance("alice") == 999


async def test_what_failed_for_good_is_remembered_for_a_while(house: House) -> None:
    pdf_hash, generation_id = await started(house, "alice", "bob")
    await fail(house.worker, await house.worker.lease(), reason="PDF_UNREADABLE", permanent=True)
    assert await house.balance("alice") == 1000

    again = await house.suite.explain("bob", pdf_hash)

    assert (again.generation_id, again.error.reason) == (generation_id, "PDF_UNREADABLE")
    assert again.status == cache_pb2.GENERATION_STATUS_FAILED
    assert again.receipt.units == 0
    assert await house.admin.fetchval("SELECT count(*) FROM quota.explain_requests") == 1
    assert await jobs_until_empty(house.worker) == []

    await pass_time(house, generation_id, minutes=11)
    later = await house.suite.explain("bob", pdf_hash)
    assert later.outcome == quota_pb2.OUTCOME_GENERATED


@pytest.mark.parametrize("ending", ["ready", "failed", "retrying", "released"])
async def test_when_an_attempt_ends_its_lease_is_gone_and_that_is_logged(
    house: House, log: LogCapture, ending: str
) -> None:
    _, generation_id = await started(house, "alice")
    job = await house.worker.lease()
    held = await row(house, generation_id)
    assert None not in {held[column] for column in LEASE_COLUMNS}

    if ending == "ready":
        await house.worker.complete(job)
    elif ending == "released":
        await release(house.worker, job)
    else:
        await fail(house.worker, job, permanent=ending == "failed")

    after = await row(house, generation_id)
    assert {after[column] for column in LEASE_COLUMNS} == {None}
    assert locks(log) == [("lock_acquired", ""), ("lock_released", ending)]


async def test_waiting_for_a_provider_holds_no_lease(waiting_house: House) -> None:
    house = waiting_house
    _, generation_id = await started(house, "alice")
    minutes = timedelta(minutes=10)

    assert await fail(house.worker, await house.worker.lease(), retry_after=minutes) == RETRYING

    waits = await row(house, generation_id)
    assert {waits[column] for column in LEASE_COLUMNS} == {None}
    assert waits["run_after"] - waits["read_at"] > minutes - timedelta(minutes=1)
    assert (waits["attempts"], waits["released"]) == (1, 0)
    assert await jobs_until_empty(house.worker) == []


@pytest.mark.parametrize("end", ["ready", "failed"])
async def test_an_end_is_final(house: House, databases: Mapping[str, str], end: str) -> None:
    _, generation_id = await started(house, "alice")
    job = await house.worker.lease()
    if end == "ready":
        await house.worker.complete(job)
    else:
        await fail(house.worker, job, permanent=True)
    await house.until("SELECT count(*) = 0 FROM cache.outbox")
    before = await row(house, generation_id)

    assert await house.worker.renew(job) == []
    assert await house.worker.complete(job, "Late") == LEASE_LOST
    assert await fail(house.worker, job, permanent=end == "ready") == LEASE_LOST
    assert await release(house.worker, job) == [LEASE_LOST]
    async with opened(databases) as database:
        await sweep(house, database, queue_wait_seconds=0, max_attempts=1)

    assert unchanged(before, await row(house, generation_id))
    assert await house.admin.fetchval("SELECT count(*) FROM cache.outbox") == 0


async def test_the_same_bytes_under_another_name_are_the_same_work(house: House) -> None:
    content = lecture("Entropy is a measure of disorder.")
    mine = await house.suite.upload("alice", content, filename="a.pdf")
    yours = await house.suite.upload("bob", content, filename="b.pdf")

    first = await house.suite.explain("alice", mine.file.pdf_hash)
    second = await house.suite.explain("bob", yours.file.pdf_hash)

    assert second.outcome == quota_pb2.OUTCOME_JOINED
    assert second.generation_id == first.generation_id


async def test_the_log_tells_the_story_of_a_lock(house: House, log: LogCapture) -> None:
    pdf_hash, generation_id = await started(house, "alice", "bob")
    first = await house.worker.lease()
    await house.suite.explain("bob", pdf_hash)
    await house.worker.renew(first)
    await let_lease_run_out(house, generation_id)
    other = Worker(house.suite, "worker-2")
    [second] = await jobs_until_empty(other)
    await house.worker.complete(first)
    await other.complete(second)

    assert locks(log) == [
        ("lock_acquired", ""),
        ("lock_skipped_duplicate", ""),  # bob joins
        ("heartbeat_extended", ""),
        ("lock_acquired", ""),
        ("lock_skipped_duplicate", ""),  # the first worker comes too late
        ("lock_released", "ready"),
    ]
    assert all(generation_id in str(entry) for entry in log.entries if "lock" in entry["event"])


def unchanged(before: Row, after: Row) -> bool:
    return {**before, "read_at": None} == {**after, "read_at": None}


async def test_who_let_a_lease_run_out_is_asked_last(house: House) -> None:
    """A frozen worker whose stream is open must not use up one attempt after the other."""
    _, generation_id = await started(house, "alice")
    await house.worker.lease()
    await let_lease_run_out(house, generation_id)

    assert await jobs_until_empty(house.worker) == []
    await pass_time(house, generation_id, seconds=30)
    [alone] = await jobs_until_empty(house.worker)  # nobody else has wanted it
    await let_lease_run_out(house, generation_id)
    [other] = await jobs_until_empty(Worker(house.suite, "worker-2"))

    assert (alone.lease.attempt, other.lease.attempt) == (2, 3)
