"""The sweep: one at a time, harmless when raced, refunds everyone, and clears away what is old."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from google.protobuf.struct_pb2 import Struct
from prometheus_client import REGISTRY

from services.cache.config import Config
from services.cache.job_domain import Failure, Lease, Verdict
from services.cache.queue_store import QueueStore
from services.cache.request_store import RequestStore
from services.cache.sweep import LEADER
from services.runtime.database import Database
from tests.cache.conftest import PATIENT, House, refused, sweeps, until_swept
from tests.cache.leases import fail, jobs_until_empty, opened, pass_time, row, sweep, sweep_of
from tests.suite import Keys, running_suite

# Everybody pays, so that everybody has something to get back.
EVERYBODY_PAYS = {"price_joined": 1}


@pytest.fixture
async def old_house(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> AsyncIterator[House]:
    """Not checked at its end: what was bought long ago is known to the ledger alone."""
    admin = await asyncpg.connect(admin_url)
    before = sweeps()
    try:
        async with running_suite(
            databases, keys, tmp_path, with_worker=False, cache=PATIENT, quota=EVERYBODY_PAYS
        ) as suite:
            await until_swept(before)
            yield House(suite, admin)
    finally:
        await admin.close()


@pytest.fixture
async def database(databases: Mapping[str, str]) -> AsyncIterator[Database]:
    async with opened(databases) as database:
        yield database


def swept(what: str) -> float:
    return REGISTRY.get_sample_value("glossa_cache_swept_total", {"what": what}) or 0.0


async def start(house: House, *users: str, request_id: str = "") -> tuple[str, str]:
    """A page that all of them have asked for: its hash and generation."""
    pdf_hash = await house.document(*users)
    first = await house.suite.explain(users[0], pdf_hash, request_id=request_id)
    for user in users[1:]:
        await house.suite.explain(user, pdf_hash)
    return pdf_hash, first.generation_id


async def grow_old(house: House, generation_id: str, *, days: float) -> None:
    """A generation and the requests for it."""
    await pass_time(house, generation_id, days=days)
    await house.admin.execute(
        "UPDATE cache.requests SET updated_at = updated_at - $2 * interval '1 day'"
        " WHERE generation_id = $1",
        generation_id,
        days,
    )


async def count(house: House, table: str) -> int:
    found: int = await house.admin.fetchval(f"SELECT count(*) FROM cache.{table}")
    return found


async def test_while_another_replica_sweeps_this_one_does_nothing(
    house: House, database: Database
) -> None:
    _, generation_id = await start(house, "alice")
    await pass_time(house, generation_id, hours=2)
    async with house.admin.transaction():
        await house.admin.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", LEADER)
        await sweep_of(database).run_once()
        assert (await row(house, generation_id))["status"] == "generating"

    await sweep(house, database)
    assert (await row(house, generation_id))["status"] == "failed"


async def test_many_sweeps_at_once_end_everything_once(house: House, database: Database) -> None:
    generations = [(await start(house, f"user-{n}"))[1] for n in range(5)]
    for generation_id in generations:
        await pass_time(house, generation_id, hours=2)
    before = swept("queue_timeout")

    await asyncio.gather(*(sweep_of(database).run_once() for _ in range(8)))

    assert swept("queue_timeout") == before + 5
    await house.until("SELECT count(*) = 0 FROM cache.outbox")
    refunds = "SELECT count(*) FROM quota.ledger_entries WHERE kind = 'refund'"
    assert await house.admin.fetchval(refunds) == 5


async def test_without_a_leader_racing_sweeps_write_each_refund_once(
    old_house: House, database: Database
) -> None:
    """As if the lock had failed: its steps are fenced, the lock only saves work."""
    house = old_house
    _, generation_id = await start(house, "alice", "bob")
    queue = QueueStore(database, Config.model_construct().clocks())
    failure = Failure(
        lease=Lease(generation_id=UUID(generation_id), attempt=0),
        reason="QUEUE_TIMEOUT",
        message="",
        permanent=False,
    )

    verdicts = await asyncio.gather(*(queue.end_abandoned_job(failure) for _ in range(10)))

    assert verdicts.count(Verdict.ACCEPTED) == 1
    assert [await house.balance(user) for user in ("alice", "bob")] == [1000, 1000]
    # Delivered refunds leave their numbers behind.
    written = "SELECT last_value FROM cache.outbox_outbox_id_seq"
    assert await house.admin.fetchval(written) == 2


async def test_racing_sweeps_give_up_an_intent_once(old_house: House, database: Database) -> None:
    house = old_house
    await leave_intents(house, 20)
    requests = RequestStore(database, Config.model_construct().clocks())

    given_up = await asyncio.gather(*(requests.abort_stale_intents() for _ in range(10)))

    assert sum(given_up) == 20
    await house.until("SELECT count(*) = 20 FROM quota.explain_requests WHERE status = 'void'")


async def leave_intents(house: House, number: int) -> None:
    """What calls leave behind that never came back."""
    await house.admin.execute(
        "INSERT INTO cache.requests (request_id, user_id, pdf_hash, page, locale, nonce, outcome,"
        " held_until, updated_at)"
        " SELECT gen_random_uuid(), 'alice', repeat('0', 64), 1, 'en', gen_random_uuid(),"
        " 'generated', now(), now() - interval '61 seconds' FROM generate_series(1, $1::integer)",
        number,
    )


@pytest.mark.parametrize("reason", ["ATTEMPTS_SPENT", "QUEUE_TIMEOUT"])
async def test_everyone_who_paid_for_what_is_swept_gets_it_back(
    old_house: House, database: Database, reason: str
) -> None:
    house, users = old_house, ["alice", "bob", "carol"]
    _, generation_id = await start(house, *users)
    assert [await house.balance(user) for user in users] == [999, 999, 999]
    # Whoever was repriced paid what only Quota knows.
    await house.admin.execute("UPDATE cache.requests SET units = NULL WHERE user_id = 'carol'")
    settings: dict[str, Any] = {}
    if reason == "ATTEMPTS_SPENT":
        await house.worker.lease()
        settings = {"max_attempts": 1}
    await pass_time(house, generation_id, hours=2)
    before = swept(reason.lower())

    await sweep(house, database, **settings)

    assert (await row(house, generation_id))["error_reason"] == reason
    assert [await house.balance(user) for user in users] == [1000, 1000, 1000]
    states = await house.admin.fetch("SELECT DISTINCT state FROM cache.requests")
    assert [one["state"] for one in states] == ["failed"]
    assert swept(reason.lower()) == before + 1


async def test_failed_generations_and_their_requests_are_kept_for_thirty_days(
    old_house: House, database: Database
) -> None:
    house = old_house
    _, generation_id = await start(house, "alice", "bob")
    await fail(house.worker, await house.worker.lease(), permanent=True)
    await house.until("SELECT count(*) = 0 FROM cache.outbox")
    requests, generations = swept("old_request"), swept("old_generation")

    await grow_old(house, generation_id, days=29.9)
    await sweep(house, database)
    assert (await count(house, "requests"), await count(house, "generations")) == (2, 1)

    await grow_old(house, generation_id, days=0.2)
    await sweep(house, database)
    assert (await count(house, "requests"), await count(house, "generations")) == (0, 0)
    assert (swept("old_request"), swept("old_generation")) == (requests + 2, generations + 1)


async def test_a_generation_stays_as_long_as_a_request_speaks_of_it(
    old_house: House, database: Database
) -> None:
    house = old_house
    _, generation_id = await start(house, "alice")
    await fail(house.worker, await house.worker.lease(), permanent=True)
    await house.until("SELECT count(*) = 0 FROM cache.outbox")
    await pass_time(house, generation_id, days=31)  # but the request is young

    await sweep(house, database)

    assert (await count(house, "requests"), await count(house, "generations")) == (1, 1)


async def test_a_ready_result_never_grows_too_old(old_house: House, database: Database) -> None:
    house = old_house
    pdf_hash, generation_id = await start(house, "alice", "bob")
    await house.worker.complete(await house.worker.lease())
    await grow_old(house, generation_id, days=400)

    await sweep(house, database)

    assert (await count(house, "requests"), await count(house, "generations")) == (0, 1)
    again = await house.suite.explain("bob", pdf_hash)
    assert (again.outcome, again.generation_id) == (quota_pb2.OUTCOME_CACHED, generation_id)


async def test_a_retired_result_can_be_read_for_thirty_days(
    old_house: House, database: Database
) -> None:
    house = old_house
    pdf_hash, generation_id = await start(house, "alice")
    await house.worker.complete(await house.worker.lease())
    await house.suite.cache.InvalidateGenerations(
        cache_pb2.InvalidateGenerationsRequest(pdf_hash=pdf_hash),
        metadata=house.suite.bearer("admin"),
    )
    await house.admin.execute(
        "UPDATE cache.requests SET updated_at = updated_at - interval '31 days'"
    )
    await pass_time(house, generation_id, days=29.9)
    await sweep(house, database)
    assert await count(house, "requests") == 0
    assert (await house.suite.generation(generation_id)).stickers

    await pass_time(house, generation_id, days=0.2)
    await sweep(house, database)
    async with refused(grpc.StatusCode.NOT_FOUND, "GENERATION_NOT_FOUND"):
        await house.suite.generation(generation_id)


async def test_a_request_whose_refund_is_still_due_stays(
    old_house: House, database: Database
) -> None:
    house = old_house
    _, generation_id = await start(house, "alice", "bob")
    await fail(house.worker, await house.worker.lease(), permanent=True)
    await house.until("SELECT count(*) = 0 FROM cache.outbox")
    await grow_old(house, generation_id, days=31)
    # Quota refuses this one for ever, as it has no user.
    await house.admin.execute(
        "INSERT INTO cache.outbox (request_id, user_id, reason)"
        " SELECT request_id, '', 'request_aborted' FROM cache.requests WHERE user_id = 'bob'"
    )

    await sweep(house, database)

    kept = await house.admin.fetch("SELECT user_id FROM cache.requests")
    assert [one["user_id"] for one in kept] == ["bob"]
    assert await count(house, "generations") == 1


async def test_after_retention_the_ledger_answers_a_replay(
    old_house: House, database: Database
) -> None:
    house, request_id = old_house, str(uuid4())
    pdf_hash, generation_id = await start(house, "alice", request_id=request_id)
    await house.worker.complete(await house.worker.lease())
    await grow_old(house, generation_id, days=31)
    await sweep(house, database)
    assert await count(house, "requests") == 0

    again = await house.suite.explain("alice", pdf_hash, request_id=request_id)

    assert (again.outcome, again.generation_id) == (quota_pb2.OUTCOME_REPLAYED, generation_id)
    assert (again.receipt.units, len(again.stickers)) == (1, 1)
    assert await house.balance("alice") == 999
    other = await house.document("alice")
    async with refused(grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED"):
        await house.suite.explain("alice", other, request_id=request_id)


async def test_after_retention_a_refunded_request_stays_dead(
    old_house: House, database: Database
) -> None:
    house, request_id = old_house, str(uuid4())
    pdf_hash, generation_id = await start(house, "alice", request_id=request_id)
    await fail(house.worker, await house.worker.lease(), permanent=True)
    await house.until("SELECT count(*) = 0 FROM cache.outbox")
    await grow_old(house, generation_id, days=31)
    await sweep(house, database)

    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "REQUEST_ID_DEAD"):
        await house.suite.explain("alice", pdf_hash, request_id=request_id)

    assert await jobs_until_empty(house.worker) == []
    assert (await count(house, "requests"), await count(house, "generations")) == (0, 0)


async def test_old_intents_are_given_up_and_counted(old_house: House, database: Database) -> None:
    house, before = old_house, swept("intent")
    await leave_intents(house, 3)

    await sweep(house, database)

    assert swept("intent") == before + 3
    await house.until("SELECT count(*) = 3 FROM quota.explain_requests WHERE status = 'void'")


async def test_more_than_one_piece_is_cleared_away_in_one_sweep(
    old_house: House, database: Database
) -> None:
    house = old_house
    await house.admin.execute(
        "INSERT INTO cache.generations (kind, pdf_hash, page, prompt_version, locale,"
        " effective_mode, model, scope, images_count, status, stage, error_reason, completed_at)"
        " SELECT 'page_explanation', repeat('0', 64), n, 'v', 'en', 'text_only', 'm', 'shared', 0,"
        " 'failed', 'failed', 'MODEL_DOWN', now() - interval '31 days'"
        " FROM generate_series(1, 1200) AS n"
    )

    await sweep(house, database)

    assert await count(house, "generations") == 0


async def test_responses_whose_time_is_over_are_cleared_away(
    old_house: House, database: Database
) -> None:
    house, before = old_house, swept("expired_response")
    for name in ("old", "young"):
        question = Struct()
        question.update({"name": name})
        await house.suite.cache.StoreResponse(
            cache_pb2.StoreResponseRequest(operation=name, input=question, response=b"x"),
            metadata=house.suite.bearer(),
        )
    await house.admin.execute(
        "UPDATE cache.ai_responses_cache SET expires_at = now() WHERE operation = 'old'"
    )

    await sweep(house, database)

    kept = await house.admin.fetch("SELECT operation FROM cache.ai_responses_cache")
    assert [one["operation"] for one in kept] == ["young"]
    assert swept("expired_response") == before + 1
