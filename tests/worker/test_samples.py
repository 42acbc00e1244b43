"""One latency sample for each request, and what hours and days of them come to."""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from glossa.worker.v1 import worker_pb2 as pb
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from services.runtime.database import Database, open_database
from services.worker.metrics_store import MetricsStore
from services.worker.sample import Metrics, SampleGroup
from services.worker.sample_store import MARK_HOURS, SAMPLES_KEPT, SampleStore
from tests import fake_openai as fake
from tests.cache.conftest import refused
from tests.fake_openai import FakeOpenAI
from tests.suite import Suite, lecture
from tests.worker.conftest import StartWorker
from tests.worker.test_lease_loop import until_ended

HASH, OTHER = "a" * 64, "b" * 64
KIND = "page_explanation"
DAY = timedelta(days=1)

COLUMNS = (
    "kind, pdf_hash, page, locale, effective_mode, outcome, cache_hit, latency_ms, images_count,"
    " chunks"
)


class Row(NamedTuple):
    """A sample as it is kept."""

    kind: str
    pdf_hash: str
    page: int
    locale: str
    effective_mode: str
    outcome: str
    cache_hit: bool
    latency_ms: int
    images_count: int
    chunks: int
    created_at: datetime


@pytest.fixture
async def admin(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


@pytest.fixture
async def database(databases: Mapping[str, str]) -> AsyncIterator[Database]:
    async with open_database(databases["worker"], application_name="test") as database:
        yield database


def sample(at: datetime, **changes: Any) -> Row:
    row = Row(KIND, HASH, 1, "en", "text_only", "generated", False, 100, 0, 1, at)
    changed = row._replace(**changes)
    return changed._replace(cache_hit=changed.outcome == "cached")


async def keep(admin: "asyncpg.Connection[Any]", rows: Sequence[Row]) -> None:
    """Samples as the store writes them, at times of the test's own."""
    async with admin.transaction():
        await admin.copy_records_to_table(
            "sticker_latency_samples", schema_name="worker", records=rows, columns=Row._fields
        )
        await admin.execute(MARK_HOURS, [row.created_at for row in rows], timedelta(days=10_000))


async def roll_up(store: MetricsStore) -> int:
    hours = 0
    while done := await store.roll_up_day():
        hours += done
    return hours


def midnight(days_ago: int) -> datetime:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - days_ago * DAY


def percentile(values: Sequence[int], share: float) -> int:
    """The first value that so many of them do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0


def expected(rows: Sequence[Row]) -> tuple[int, ...]:
    hits = [row.latency_ms for row in rows if row.cache_hit]
    others = [row.latency_ms for row in rows if not row.cache_hit]
    outcomes = [row.outcome for row in rows]
    shares = (0.5, 0.95, 0.99)
    return (
        outcomes.count("cached"),
        outcomes.count("generated"),
        outcomes.count("joined"),
        *(percentile(others, share) for share in shares),
        *(percentile(hits, share) for share in shares),
        sum(row.images_count for row in rows),
        sum(row.chunks for row in rows),
    )


def told(metrics: Metrics) -> tuple[int, ...]:
    return (
        metrics.cache_hits,
        metrics.cache_misses,
        metrics.joins,
        metrics.generation.p50_ms,
        metrics.generation.p95_ms,
        metrics.generation.p99_ms,
        metrics.hit.p50_ms,
        metrics.hit.p95_ms,
        metrics.hit.p99_ms,
        metrics.total_images,
        metrics.total_chunks,
    )


def many_samples(day: datetime, count: int) -> list[Row]:
    dice = random.Random(7)
    return [
        sample(
            day + timedelta(seconds=dice.randrange(86_400)),
            pdf_hash=dice.choice((HASH, OTHER)),
            locale=dice.choice(("en", "zh-Hans")),
            effective_mode=dice.choice(("text_only", "with_images")),
            outcome=dice.choice(("generated", "joined", "cached", "cached")),
            latency_ms=dice.randrange(10_000),
            images_count=dice.randrange(4),
            chunks=dice.randrange(3),
        )
        for _ in range(count)
    ]


async def test_every_request_leaves_one_sample(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    worker_port: int,
    admin: "asyncpg.Connection[Any]",
) -> None:
    content = lecture("A tree is a connected graph without cycles.")
    for user in ("ada", "bob", "eve"):
        pdf_hash = (await cluster.upload(user, content)).document.pdf_hash
    model.gate.clear()
    async with start_worker(port=worker_port):
        first = await cluster.explain("ada", pdf_hash)
        await model.wait_for_calls(1)
        await cluster.explain("bob", pdf_hash)
        model.gate.set()
        await until_ended(cluster, first.generation_id)
        hit = await cluster.explain("eve", pdf_hash)
        # The same request again is no other request.
        await cluster.explain("eve", pdf_hash, request_id=hit.request_id)
        while await admin.fetchval("SELECT count(*) FROM worker.sticker_latency_samples") < 3:
            pass

    rows = await admin.fetch(
        f"SELECT {COLUMNS} FROM worker.sticker_latency_samples ORDER BY outcome"
    )
    assert [row["outcome"] for row in rows] == ["cached", "generated", "joined"]
    for row in rows:
        shared = (row["kind"], row["pdf_hash"], row["page"], row["locale"], row["effective_mode"])
        assert shared == (KIND, pdf_hash, 1, "en", "text_only")
        assert row["cache_hit"] == (row["outcome"] == "cached")
        assert row["latency_ms"] >= 0
    assert [row["chunks"] for row in rows] == [0, 1, 1]


async def test_samples_wait_for_a_worker_that_is_away(
    cluster: Suite,
    start_worker: StartWorker,
    worker_port: int,
    admin: "asyncpg.Connection[Any]",
) -> None:
    content = lecture("A tree is a connected graph without cycles.")
    pdf_hash = (await cluster.upload("ada", content)).document.pdf_hash
    async with start_worker():  # not where the Cache looks for one
        first = await cluster.explain("ada", pdf_hash)
        await until_ended(cluster, first.generation_id)
    for _ in range(4):
        await cluster.explain("ada", pdf_hash)
    assert await admin.fetchval("SELECT count(*) FROM worker.sticker_latency_samples") == 0

    async with start_worker(port=worker_port):
        while await admin.fetchval("SELECT count(*) FROM worker.sticker_latency_samples") < 5:
            pass


async def test_sums_and_percentiles_are_those_of_a_plain_count(
    admin: "asyncpg.Connection[Any]", database: Database
) -> None:
    day = midnight(2)
    rows = many_samples(day, 3_000)
    await keep(admin, rows)
    store = MetricsStore(database)

    assert await roll_up(store) == 24

    summary = await store.read_summary(day.date(), KIND)
    assert told(summary.total) == expected(rows)
    for name, dimension in (
        ("modes", "effective_mode"),
        ("locales", "locale"),
        ("documents", "pdf_hash"),
    ):
        parts: Mapping[str, Metrics] = getattr(summary, name)
        by_part = defaultdict(list)
        for row in rows:
            by_part[getattr(row, dimension)].append(row)
        assert {one: told(metrics) for one, metrics in parts.items()} == {
            one: expected(some) for one, some in by_part.items()
        }
    for hour, metrics in summary.hours.items():
        assert told(metrics) == expected([row for row in rows if row.created_at.hour == hour])
    assert len(summary.hours) == 24


async def test_the_finest_parts_are_kept_by_hour(
    admin: "asyncpg.Connection[Any]", database: Database
) -> None:
    rows = many_samples(midnight(2), 500)
    await keep(admin, rows)

    await roll_up(MetricsStore(database))

    kept = await admin.fetch(
        "SELECT begins_at, pdf_hash, locale, effective_mode, cache_hits + cache_misses + joins AS n"
        " FROM worker.sticker_metrics WHERE span = 'hour' AND pdf_hash <> '' AND locale <> ''"
    )
    by_part: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        hour = row.created_at.replace(minute=0, second=0, microsecond=0)
        by_part[(hour, row.pdf_hash, row.locale, row.effective_mode)] += 1
    assert {tuple(row)[:-1]: row["n"] for row in kept} == by_part


async def test_any_number_of_workers_at_once_counts_everything_once(
    admin: "asyncpg.Connection[Any]", databases: Mapping[str, str]
) -> None:
    rows = many_samples(midnight(1), 400) + many_samples(midnight(3), 400)
    await keep(admin, rows)
    async with AsyncExitStack() as stack:
        stores = [
            MetricsStore(
                await stack.enter_async_context(
                    open_database(databases["worker"], application_name=f"worker-{number}")
                )
            )
            for number in range(4)
        ]
        await asyncio.gather(*(roll_up(store) for store in stores for _ in range(3)))
        for days_ago, part in ((1, rows[:400]), (3, rows[400:])):
            summary = await stores[0].read_summary(midnight(days_ago).date(), KIND)
            assert told(summary.total) == expected(part)
            assert summary.complete_until > midnight(1)


async def test_hours_missed_while_nobody_was_there_are_caught_up(
    cluster: Suite,
    start_worker: StartWorker,
    admin: "asyncpg.Connection[Any]",
) -> None:
    await keep(admin, [row for days in (2, 3, 5) for row in many_samples(midnight(days), 50)])

    async with (
        start_worker() as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        stub = WorkerServiceStub(channel)
        for days in (2, 3, 5):
            request = pb.GetDailySummaryRequest(day=midnight(days).date().isoformat())
            while True:
                summary = await stub.GetDailySummary(request, metadata=cluster.bearer("admin"))
                if summary.complete_until.ToDatetime(tzinfo=UTC) >= midnight(0):
                    break
            metrics = summary.total
            assert metrics.cache_hits + metrics.cache_misses + metrics.joins == 50
            assert sum(hour.metrics.cache_hits for hour in summary.hours) == metrics.cache_hits


async def test_a_sample_that_comes_late_is_counted_in_its_hour(
    admin: "asyncpg.Connection[Any]", database: Database
) -> None:
    at = midnight(1) + timedelta(hours=3)
    store = MetricsStore(database)
    await keep(admin, [sample(at)])
    assert await roll_up(store) == 1
    assert await roll_up(store) == 0

    await keep(admin, [sample(at, latency_ms=300)])
    assert await roll_up(store) == 1

    summary = await store.read_summary(midnight(1).date(), KIND)
    assert (summary.total.cache_misses, summary.total.generation.p95_ms) == (2, 300)
    assert summary.hours[3].cache_misses == 2


async def test_what_is_recorded_while_its_hour_is_summed_up_is_not_forgotten(
    databases: Mapping[str, str], admin: "asyncpg.Connection[Any]"
) -> None:
    # Two hours ago, on one day, wherever the clock stands.
    now: datetime = await admin.fetchval("SELECT date_trunc('hour', now(), 'UTC')")
    age_ms = 2 * 3600 * 1000

    def late() -> SampleGroup:
        return SampleGroup(
            kind=KIND,
            pdf_hash=HASH,
            page=1,
            locale="en",
            effective_mode="text_only",
            outcome="cached",
            images_count=0,
            chunks=0,
            latency_ms=[1] * 5,
            age_ms=[age_ms] * 5,
        )

    async with AsyncExitStack() as stack:
        recorder, summer = [
            await stack.enter_async_context(
                open_database(databases["worker"], application_name=name, pool_size=8)
            )
            for name in ("recorder", "summer")
        ]
        recording = [
            asyncio.create_task(SampleStore(recorder).record_samples(uuid4(), [late()]))
            for _ in range(200)
        ]
        store = MetricsStore(summer)
        while not all(task.done() for task in recording):
            await roll_up(store)
        await asyncio.gather(*recording)
        await roll_up(store)

    counted = await admin.fetchval(
        "SELECT sum(cache_hits) FROM worker.sticker_metrics"
        " WHERE span = 'hour' AND pdf_hash = '' AND locale = '' AND effective_mode = ''"
        " AND begins_at < $1",
        now,
    )
    assert counted == 1_000


async def test_the_hour_that_still_runs_is_left_alone(
    admin: "asyncpg.Connection[Any]", database: Database
) -> None:
    now: datetime = await admin.fetchval("SELECT now()")
    before = now - timedelta(hours=1)
    await keep(admin, [sample(now), sample(before)])
    store = MetricsStore(database)

    assert await roll_up(store) == 1

    open_hours = await admin.fetch(
        "SELECT hour FROM worker.metric_hours WHERE rolled_up_at IS NULL"
    )
    assert [row["hour"] for row in open_hours] == [now.replace(minute=0, second=0, microsecond=0)]
    summary = await store.read_summary(before.astimezone(UTC).date(), KIND)
    assert summary.total.cache_misses == 1
    assert summary.complete_until <= now


async def test_samples_go_after_two_weeks_but_never_before_they_were_summed_up(
    cluster: Suite, start_worker: StartWorker, admin: "asyncpg.Connection[Any]", database: Database
) -> None:
    old, young = midnight(20) + timedelta(hours=5), midnight(10)
    await keep(admin, [sample(old), sample(old, outcome="cached"), sample(young)])

    async with start_worker():
        while await admin.fetchval("SELECT count(*) FROM worker.sticker_latency_samples") > 1:
            pass

    left = await admin.fetchval("SELECT created_at FROM worker.sticker_latency_samples")
    assert left == young
    summary = await MetricsStore(database).read_summary(midnight(20).date(), KIND)
    assert (summary.total.cache_misses, summary.total.cache_hits) == (1, 1)
    assert timedelta(days=14) == SAMPLES_KEPT


async def test_failures_are_counted_with_their_reasons(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    admin: "asyncpg.Connection[Any]",
    database: Database,
) -> None:
    model.always(fake.refusal())
    pdf_hash = (await cluster.upload("ada", lecture("One page.", "Another."))).document.pdf_hash
    async with start_worker():
        for page in (1, 2):
            await cluster.explain("ada", pdf_hash, page=page)
        while await admin.fetchval("SELECT count(*) FROM worker.dead_letters") < 2:
            pass
    # As if it had been yesterday.
    await admin.execute("UPDATE worker.dead_letters SET failed_at = failed_at - interval '1 day'")
    await admin.execute("UPDATE worker.metric_hours SET hour = hour - interval '1 day'")
    store = MetricsStore(database)

    await roll_up(store)

    summary = await store.read_summary(None, KIND)
    assert summary.day == midnight(1).date()
    assert summary.failures == {"CONTENT_REFUSED": 2}
    assert (summary.total.failures, summary.open_dead_letters) == (2, 2)
    assert summary.documents[pdf_hash].failures == 2


def batch(**changes: Any) -> pb.RecordSamplesRequest:
    fields: dict[str, Any] = {
        "kind": KIND,
        "pdf_hash": HASH,
        "page": 1,
        "locale": "en",
        "effective_mode": registry_pb2.EFFECTIVE_MODE_TEXT_ONLY,
        "outcome": quota_pb2.OUTCOME_CACHED,
        "latency_ms": [3, 4],
        "age_ms": [0, 10],
    }
    request = pb.RecordSamplesRequest(batch_id=str(uuid4()))
    request.groups.add(**(fields | changes))
    return request


async def test_a_batch_that_is_sent_again_counts_once(
    cluster: Suite, start_worker: StartWorker, admin: "asyncpg.Connection[Any]"
) -> None:
    request, bearer = batch(), cluster.bearer("cache")
    async with (
        start_worker() as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        stub = WorkerServiceStub(channel)
        await asyncio.gather(*(stub.RecordSamples(request, metadata=bearer) for _ in range(10)))

    rows = await admin.fetch("SELECT latency_ms FROM worker.sticker_latency_samples ORDER BY 1")
    assert [row["latency_ms"] for row in rows] == [3, 4]
    assert await admin.fetchval("SELECT count(*) FROM worker.metric_hours") in (1, 2)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"pdf_hash": "x"}, "groups[0].pdf_hash"),
    ({"page": 0}, "groups[0].page"),
    ({"locale": ""}, "groups[0].locale"),
    ({"kind": "\0"}, "groups[0].kind"),
    ({"effective_mode": 0}, "groups[0].effective_mode"),
    ({"outcome": quota_pb2.OUTCOME_REPLAYED}, "groups[0].outcome"),
    ({"chunks": -1}, "groups[0].chunks"),
    ({"age_ms": [1]}, "groups[0].age_ms"),
    ({"age_ms": [1, 10**9]}, "groups[0].age_ms"),
    ({"latency_ms": [1, -1]}, "groups[0].latency_ms"),
    ({"latency_ms": [], "age_ms": []}, "groups"),
    ({"latency_ms": [1] * 10_001, "age_ms": [1] * 10_001}, "groups"),
]


async def test_bad_samples_are_refused_and_nothing_is_kept(
    cluster: Suite, start_worker: StartWorker, admin: "asyncpg.Connection[Any]"
) -> None:
    async with (
        start_worker() as worker,
        grpc.aio.insecure_channel(worker.address) as channel,
    ):
        stub, bearer = WorkerServiceStub(channel), cluster.bearer("cache")
        for changes, field in BAD:
            async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT") as seen:
                await stub.RecordSamples(batch(**changes), metadata=bearer)
            assert seen[0].details().startswith(field)
        async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
            await stub.RecordSamples(batch(), metadata=cluster.bearer("gateway", "worker", "admin"))
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT"):
            await stub.GetDailySummary(
                pb.GetDailySummaryRequest(day="yesterday"), metadata=cluster.bearer("admin")
            )
        async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
            await stub.GetDailySummary(pb.GetDailySummaryRequest(), metadata=bearer)

    assert await admin.fetchval("SELECT count(*) FROM worker.sticker_latency_samples") == 0
