"""What happens is counted, once and under the right name."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2
from prometheus_client import REGISTRY

from services.runtime.database import open_database
from services.runtime.errors import DependencyDown
from services.runtime.settings import ExplanationSettings
from tests.fake_openai import FakeOpenAI, fake_openai, refusal
from tests.metrics.conftest import hit
from tests.suite import Keys, Suite, lecture, running_suite

ONE_CHUNK = {"mode": "text_only", "images": "0", "chunks": "1"}


def count(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


class Watched:
    """Metrics as they were, to be compared with what they are."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
        }

    def rise(self, name: str, **labels: str) -> float:
        before = self._before.get((name, frozenset(labels.items())), 0.0)
        return count(name, **labels) - before

    async def until(self, name: str, rise: float, **labels: str) -> None:
        async with asyncio.timeout(60):
            while self.rise(name, **labels) < rise:  # noqa: ASYNC110 - a counter gives no event
                await asyncio.sleep(0.01)


@pytest.fixture
async def model() -> AsyncIterator[FakeOpenAI]:
    async with fake_openai() as model:
        yield model


@pytest.fixture
async def suite(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, model: FakeOpenAI
) -> AsyncIterator[Suite]:
    explanation = ExplanationSettings(OPENAI_API_KEY="secret", OPENAI_BASE_URL=model.url)
    async with running_suite(
        databases,
        keys,
        tmp_path,
        explanation=explanation,
        quota={"hard_limit": 3},
        worker={"renew_seconds": 0.2},
    ) as suite:
        yield suite


async def explained(suite: Suite, user: str, content: bytes) -> cache_pb2.ExplainPageResponse:
    uploaded = await suite.upload(user, content)
    return await suite.explain(user, uploaded.file.pdf_hash)


async def test_a_page_from_the_first_call_to_the_last_is_counted(
    suite: Suite, model: FakeOpenAI
) -> None:
    watched, content = Watched(), lecture("Entropy is a measure of disorder.")
    model.gate.clear()
    first = await explained(suite, "alice", content)
    await explained(suite, "bob", content)
    await model.wait_for_calls(1)
    model.gate.set()
    await watched.until("glossa_worker_attempts_total", 1, result="ready")
    await explained(suite, "carol", content)
    pdf_hash = (await suite.upload("alice", content)).file.pdf_hash
    await suite.explain("alice", pdf_hash, request_id=first.request_id)
    with pytest.raises(grpc.aio.AioRpcError):
        await suite.explain("mallory", pdf_hash)

    for outcome in ("generated", "joined", "cached", "replayed"):
        assert watched.rise("glossa_cache_answers_total", outcome=outcome) == 1, outcome
    assert watched.rise("glossa_cache_refusals_total", reason="file_not_found") == 1
    assert watched.rise("glossa_cache_lease_wait_seconds_count", lane="interactive") == 1
    assert watched.rise("glossa_worker_attempt_classes_total", **{"class": "ok"}) == 1
    assert watched.rise("glossa_worker_generation_seconds_count", **ONE_CHUNK) == 1
    assert watched.rise("glossa_worker_model_calls_total", model_kind="openai", result="ok") == 1
    assert watched.rise("glossa_worker_model_call_seconds_count", model_kind="openai") == 1
    assert watched.rise("glossa_worker_model_tokens_total", kind="input") > 0
    assert watched.rise("glossa_worker_model_tokens_total", kind="output") > 0
    # Reported in batches.
    await watched.until("glossa_worker_model_cost_dollars_total", 1e-9)
    assert watched.rise("glossa_cache_pool_acquire_seconds_count") > 0


async def test_money_is_seen_by_the_next_look(suite: Suite, model: FakeOpenAI) -> None:
    watched = Watched()
    await explained(suite, "alice", lecture("Entropy is a measure of disorder."))
    await watched.until("glossa_worker_model_cost_dollars_total", 1e-9)
    spent = watched.rise("glossa_worker_model_cost_dollars_total")

    async with asyncio.timeout(60):
        while count("glossa_quota_spent_today_dollars") == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    assert count("glossa_quota_spent_today_dollars") == pytest.approx(spent)
    assert count("glossa_quota_daily_ceiling_dollars") == 100


async def test_a_failure_and_its_refunds_are_counted_by_class_and_reason(
    suite: Suite, model: FakeOpenAI
) -> None:
    watched = Watched()
    model.answer = lambda question: refusal()
    await explained(suite, "alice", lecture("Entropy is a measure of disorder."))

    await watched.until("glossa_quota_refunds_total", 1, reason="generation_failed")
    assert watched.rise("glossa_worker_attempt_classes_total", **{"class": "permanent"}) == 1
    assert watched.rise("glossa_quota_refunds_total", reason="generation_failed") == 1
    refused = {"model_kind": "openai", "result": "content_refused"}
    assert watched.rise("glossa_worker_model_calls_total", **refused) == 1


async def test_a_refund_is_counted_once_however_often_it_comes(suite: Suite) -> None:
    watched, request_id = Watched(), str(uuid4())
    item = quota_pb2.RefundRequest.Item(
        request_id=request_id, user_id="alice", reason=quota_pb2.REFUND_REASON_REQUEST_ABORTED
    )
    for _ in range(2):
        await suite.quota.Refund(
            quota_pb2.RefundRequest(items=[item]), metadata=suite.bearer("cache")
        )

    assert watched.rise("glossa_quota_voided_charges_total") == 1
    assert watched.rise("glossa_quota_refunds_total", reason="request_aborted") == 0


async def test_a_full_window_is_counted_by_its_tier(suite: Suite) -> None:
    watched = Watched()
    requests = [hit("alice", "a" * 64) for _ in range(5)]
    await suite.quota.AdmitMany(
        quota_pb2.AdmitManyRequest(requests=requests), metadata=suite.bearer("cache")
    )

    assert watched.rise("glossa_quota_window_refusals_total", tier="hard") == 2
    assert watched.rise("glossa_quota_window_refusals_total", tier="daily") == 0
    assert watched.rise("glossa_quota_decisions_total", decision="rate_limited") == 2


async def test_renewals_are_counted_and_those_of_nobody_as_lost(suite: Suite) -> None:
    watched = Watched()
    lease = jobs_pb2.Lease(generation_id=str(uuid4()), attempt=1)
    await suite.jobs.RenewLeases(
        jobs_pb2.RenewLeasesRequest(worker_id="late", leases=[jobs_pb2.LeaseProgress(lease=lease)]),
        metadata=suite.bearer("worker"),
    )

    assert watched.rise("glossa_cache_lease_renewals_total") == 0
    assert watched.rise("glossa_cache_leases_lost_total", call="renew") == 1


async def test_locks_and_heartbeats_that_fail_are_counted(
    suite: Suite, model: FakeOpenAI, admin_url: str
) -> None:
    watched = Watched()
    model.gate.clear()
    await explained(suite, "alice", lecture("Entropy is a measure of disorder."))
    await model.wait_for_calls(1)
    admin = await asyncpg.connect(admin_url)
    try:
        async with admin.transaction():
            await admin.execute("LOCK TABLE cache.generations IN ACCESS EXCLUSIVE MODE")
            await watched.until("glossa_cache_lock_failures_total", 1, what="lease")
            await watched.until("glossa_worker_heartbeat_failures_total", 1)
    finally:
        await admin.close()
    model.gate.set()

    await watched.until("glossa_worker_attempts_total", 1, result="ready")
    assert watched.rise("glossa_cache_lease_renewals_total") > 0


async def test_a_call_that_gets_no_connection_is_counted(databases: Mapping[str, str]) -> None:
    watched = Watched()
    async with (
        open_database(databases["cache"], application_name="crowded", pool_size=1) as database,
        database.connection(),
    ):
        with pytest.raises(DependencyDown):
            async with database.connection():
                pass
        await database.count_connections()

        assert count("glossa_crowded_pool_connections", state="used") == 1
        assert count("glossa_crowded_pool_connections_limit") == 1
    assert watched.rise("glossa_crowded_pool_acquire_failures_total") == 1
    assert count("glossa_crowded_pool_waiting_calls") == 0


async def test_every_service_tells_how_late_its_loop_is(suite: Suite) -> None:
    watched = Watched()
    for service in ("registry", "cache", "quota", "worker"):
        await watched.until(f"glossa_{service}_loop_lag_seconds_count", 2)
