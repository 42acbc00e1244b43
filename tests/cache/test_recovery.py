"""Charge and enqueue: whatever breaks in between ends with work and charge, or with neither."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2

from services.cache.__main__ import compose
from services.cache.attach_store import AttachStore
from services.cache.config import Config
from services.cache.domain import SHARED_SCOPE, Ask, Key, Outcome, Request, ResolvedPage
from services.cache.request_store import RequestStore
from services.runtime.database import open_database
from services.runtime.server import running
from services.runtime.settings import ExplanationSettings
from tests.cache.conftest import House, details, open_house, refused
from tests.suite import Keys

NOBODY_LISTENS = "127.0.0.1:1"


@asynccontextmanager
async def cache_cut_off_from_quota(
    house: House, databases: Mapping[str, str], keys: Keys
) -> AsyncIterator[CacheServiceStub]:
    """A second replica of the Cache whose Quota does not answer and whose sweep sleeps."""
    config = Config(
        database_url=databases["cache"],
        verify_key_file=keys.verify_key_file,
        token_file=keys.token_file("cache"),
        registry_address=house.suite.addresses["registry"],
        quota_address=NOBODY_LISTENS,
    )
    async with (
        running("cache", config, compose) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        yield CacheServiceStub(channel)


def ask_for(pdf_hash: str, request_id: UUID) -> cache_pb2.ExplainPageRequest:
    return cache_pb2.ExplainPageRequest(
        user_id="alice", pdf_hash=pdf_hash, page=1, locale="en", request_id=str(request_id)
    )


async def charge(house: House, pdf_hash: str, request_id: UUID) -> None:
    """What the Cache sends to Quota between its two transactions."""
    context = quota_pb2.PageContext(
        pdf_hash=pdf_hash,
        page=1,
        locale="en",
        effective_mode=registry_pb2.EFFECTIVE_MODE_TEXT_ONLY,
    )
    request = quota_pb2.AdmitRequest(
        request_id=str(request_id),
        user_id="alice",
        endpoint="explain_page",
        outcome=quota_pb2.OUTCOME_GENERATED,
        page=context,
    )
    await house.suite.quota.Admit(request, metadata=house.suite.bearer("cache"))


def page_of(pdf_hash: str) -> ResolvedPage:
    return ResolvedPage(pdf_hash=pdf_hash, page=1, effective_mode="text_only", images_count=0)


async def open_intent(
    databases: Mapping[str, str],
    pdf_hash: str,
    request_id: UUID,
    *,
    hold: float = 0,
    join: UUID | None = None,
) -> Request:
    """What the Cache writes before it charges; held for as long as its holder seems alive."""
    clocks = Config.model_construct(hold_seconds=hold).clocks()
    async with open_database(databases["cache"], application_name="test") as database:
        opened = await RequestStore(database, clocks).open_intent(
            Ask(
                request_id=request_id,
                user_id="alice",
                file_id=None,
                pdf_hash=pdf_hash,
                page=1,
                locale="en",
            ),
            page_of(pdf_hash),
            scope=SHARED_SCOPE,
            outcome=Outcome.JOINED if join else Outcome.GENERATED,
            generation_id=join,
        )
    assert opened is not None
    return opened


def key_of(pdf_hash: str, *, model: str, prompt_version: str) -> Key:
    return Key(
        kind="page_explanation",
        pdf_hash=pdf_hash,
        page=1,
        prompt_version=prompt_version,
        locale="en",
        effective_mode="text_only",
        model=model,
        scope="shared",
    )


async def test_without_quota_nothing_is_started_and_the_caller_may_retry(
    house: House, databases: Mapping[str, str], keys: Keys
) -> None:
    pdf_hash, request_id = await house.document("alice"), uuid4()
    async with (
        cache_cut_off_from_quota(house, databases, keys) as broken,
        refused(grpc.StatusCode.UNAVAILABLE, "QUOTA_UNAVAILABLE") as seen,
    ):
        await broken.ExplainPage(ask_for(pdf_hash, request_id), metadata=house.suite.bearer())

    assert "RetryInfo" in details(seen[0])
    assert await house.admin.fetchval("SELECT count(*) FROM cache.generations") == 0
    answer = await house.suite.explain("alice", pdf_hash, request_id=str(request_id))
    assert answer.outcome == quota_pb2.OUTCOME_GENERATED
    assert await house.balance("alice") == 999


async def test_an_intent_left_before_the_charge_keeps_a_late_charge_out(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    quick = {"intent_seconds": 0.1, "sweep_seconds": 0.1}
    async with open_house(admin_url, databases, keys, tmp_path, **quick) as house:
        pdf_hash, request_id = await house.document("alice"), uuid4()
        await open_intent(databases, pdf_hash, request_id)

        await house.until("SELECT status = 'void' FROM quota.explain_requests")
        await charge(house, pdf_hash, request_id)

        assert await house.balance("alice") == 1000
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "REQUEST_ID_DEAD"):
            await house.suite.explain("alice", pdf_hash, request_id=str(request_id))


async def test_a_charge_whose_request_died_is_given_back(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    quick = {"intent_seconds": 0.1, "sweep_seconds": 0.1}
    async with open_house(admin_url, databases, keys, tmp_path, **quick) as house:
        pdf_hash, request_id = await house.document("alice"), uuid4()
        await charge(house, pdf_hash, request_id)
        await open_intent(databases, pdf_hash, request_id)

        await house.until("SELECT status = 'refunded' FROM quota.explain_requests")

        assert await house.balance("alice") == 1000
        assert await house.admin.fetchval("SELECT state FROM cache.requests") == "aborted"
        assert await house.admin.fetchval("SELECT count(*) FROM cache.generations") == 0


async def test_a_retry_finishes_what_a_crash_after_the_charge_left(
    house: House, databases: Mapping[str, str]
) -> None:
    pdf_hash, request_id = await house.document("alice"), uuid4()
    await open_intent(databases, pdf_hash, request_id)
    await charge(house, pdf_hash, request_id)

    answer = await house.suite.explain("alice", pdf_hash, request_id=str(request_id))

    assert answer.outcome == quota_pb2.OUTCOME_GENERATED
    assert answer.receipt.units == 1
    assert await house.balance("alice") == 999


async def test_a_taken_over_intent_cannot_be_attached_by_its_former_holder(
    house: House, databases: Mapping[str, str]
) -> None:
    pdf_hash, request_id = await house.document("alice"), uuid4()
    slow = await open_intent(databases, pdf_hash, request_id)
    key = key_of(pdf_hash, model="test", prompt_version="1")
    async with open_database(databases["cache"], application_name="test") as database:
        store = RequestStore(database, Config.model_construct().clocks())
        assert await store.take_over_intent(request_id) is not None
        attached = await AttachStore(database).attach(
            request_id, nonce=slow.nonce, key=key, page=page_of(pdf_hash), units=1
        )

    assert attached is None
    assert await house.admin.fetchval("SELECT count(*) FROM cache.generations") == 0


async def test_an_intent_whose_holder_seems_alive_is_left_to_it(
    house: House, databases: Mapping[str, str]
) -> None:
    pdf_hash, request_id = await house.document("alice"), uuid4()
    await open_intent(databases, pdf_hash, request_id, hold=60)

    async with refused(grpc.StatusCode.UNAVAILABLE, "REQUEST_IN_PROGRESS") as seen:
        await house.suite.explain("alice", pdf_hash, request_id=str(request_id))

    assert "RetryInfo" in details(seen[0])
    assert await house.admin.fetchval("SELECT count(*) FROM quota.explain_requests") == 0


async def test_a_refused_retry_leaves_the_intent_for_a_charge_that_may_still_land(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    quick = {"intent_seconds": 3, "sweep_seconds": 0.1}
    async with open_house(admin_url, databases, keys, tmp_path, **quick) as house:
        pdf_hash, request_id = await house.document("alice"), uuid4()
        await open_intent(databases, pdf_hash, request_id)  # and its charge is under way
        await fill_the_window(house)

        for _ in range(2):  # the second is told the same, not that the first still holds it
            async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED"):
                await house.suite.explain("alice", pdf_hash, request_id=str(request_id))
        await house.until(
            "SELECT state = 'aborted' FROM cache.requests WHERE request_id = $1", request_id
        )
        await house.until("SELECT count(*) = 0 FROM cache.outbox")
        await house.admin.execute("DELETE FROM quota.ai_request_log")
        await charge(house, pdf_hash, request_id)

        assert await house.balance("alice") == 1000


async def fill_the_window(house: House) -> None:
    await house.admin.execute(
        "INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at, sequence)"
        " SELECT 'alice', 'explain_page', now(), n FROM generate_series(1, 100) AS n"
    )


async def test_giving_up_another_call_with_its_id_does_not_refund_a_hit(
    admin_url: str, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    quick = {"intent_seconds": 0.1, "sweep_seconds": 0.1}
    async with open_house(admin_url, databases, keys, tmp_path, **quick) as house:
        known, other = await house.document("alice", "bob"), await house.document("alice")
        await house.suite.explain("bob", known)
        await house.worker.complete(await house.worker.lease())
        request_id = uuid4()
        await house.suite.explain("alice", known, request_id=str(request_id))

        await open_intent(databases, other, request_id)  # by a call that never came back
        await house.until(
            "SELECT state = 'aborted' FROM cache.requests WHERE request_id = $1", request_id
        )

        assert await house.balance("alice") == 999


async def test_a_poisoned_refund_does_not_hold_up_the_others(house: House) -> None:
    await house.suite.explain("alice", await house.document("alice"))
    job = await house.worker.lease()
    await house.admin.execute(
        "INSERT INTO cache.outbox (request_id, user_id, reason) VALUES ($1, '', 'request_aborted')",
        uuid4(),
    )
    await house.worker.fail(job, permanent=True)

    await house.until("SELECT balance_units = 1000 FROM quota.accounts WHERE user_id = 'alice'")
    await house.until("SELECT count(*) = 1 FROM cache.outbox")

    await house.admin.execute("DELETE FROM cache.outbox")


async def test_refunds_wait_until_quota_is_back(house: House) -> None:
    pdf_hash = await house.document("alice")
    await house.suite.explain("alice", pdf_hash)
    job = await house.worker.lease()
    async with house.admin.transaction():
        # As if Quota had been away: nobody can settle while its accounts are locked.
        await house.admin.execute("LOCK quota.accounts IN ACCESS EXCLUSIVE MODE")
        await house.worker.fail(job, permanent=True)
        assert await house.admin.fetchval("SELECT count(*) FROM cache.outbox") == 1

    assert await house.balance("alice") == 1000


# Stops a request between finding its generation and being written down for it.
STOP_REQUEST = """
CREATE FUNCTION cache.stop() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END';
CREATE TRIGGER stop BEFORE UPDATE ON cache.requests FOR EACH ROW
    WHEN (old.state = 'intent' AND new.state <> 'intent') EXECUTE FUNCTION cache.stop();
"""


@pytest.mark.parametrize("knows_it", [False, True], ids=["lost the race", "came to join"])
async def test_a_generation_cannot_end_while_somebody_is_being_written_down_for_it(
    house: House, databases: Mapping[str, str], admin_url: str, knows_it: bool
) -> None:
    pdf_hash, request_id = await house.document("alice", "bob"), uuid4()
    generation_id = UUID((await house.suite.explain("bob", pdf_hash)).generation_id)
    job = await house.worker.lease()
    await charge(house, pdf_hash, request_id)
    join = generation_id if knows_it else None
    intent = await open_intent(databases, pdf_hash, request_id, join=join)
    settings = ExplanationSettings()
    key = key_of(pdf_hash, model=settings.model_name, prompt_version=settings.prompt_version)
    await house.admin.execute(STOP_REQUEST)
    blocker = await asyncpg.connect(admin_url)
    async with open_database(databases["cache"], application_name="test") as database:
        store = AttachStore(database)
        async with blocker.transaction():
            await blocker.execute("SELECT pg_advisory_xact_lock(1)")
            joining = asyncio.create_task(
                store.join(request_id, nonce=intent.nonce, generation_id=generation_id, units=0)
                if knows_it
                else store.attach(
                    request_id, nonce=intent.nonce, key=key, page=page_of(pdf_hash), units=1
                )
            )
            await house.until("SELECT count(*) >= 1 FROM pg_locks WHERE NOT granted")
            ending = asyncio.create_task(house.worker.complete(job))
            await house.until("SELECT count(*) >= 2 FROM pg_locks WHERE NOT granted")
        await asyncio.gather(joining, ending)
    await blocker.close()

    state = "SELECT state FROM cache.requests WHERE request_id = $1 AND generation_id = $2"
    assert await house.admin.fetchval(state, request_id, generation_id) == "served"
