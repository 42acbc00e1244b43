"""Every call to a model reaches Quota with what it cost, and no attempt waits for that."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from glossa.cache.v1 import cache_pb2

from services.runtime.errors import DependencyDown, InvalidInput
from services.runtime.settings import OFFLINE_MODEL
from services.worker import operations as module
from services.worker.domain import Job, Lease, ModelCall, Usage
from services.worker.metrics import OPERATIONS_LOST
from services.worker.operations import Operations
from services.worker.wire import operation_message
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAI
from tests.suite import Keys, Suite, lecture, running_suite
from tests.worker.conftest import StartWorker
from tests.worker.waiting import until

# 800 new and 100 cached tokens in, 80 out, at the prices of gpt-4.1-mini.
COST = 800 * 400 + 100 * 100 + 80 * 1600


def call(model: str = "gpt-4.1-mini") -> ModelCall:
    job = Job(
        lease=Lease(generation_id=uuid4(), attempt=1),
        kind="page_explanation",
        scope="shared",
        pdf_hash="a" * 64,
        page=1,
        locale="en",
        effective_mode="text_only",
        images_count=0,
        model=model,
        prompt_version="1",
        time_left=timedelta(minutes=1),
    )
    return ModelCall(
        operation_id=uuid4(),
        job=job,
        model=model,
        usage=Usage(),
        duration=timedelta(seconds=1),
        outcome="ok",
    )


def lost(why: str) -> float:
    counted: float = OPERATIONS_LOST.labels(why)._value.get()
    return counted


class Receiver:
    """Quota as a worker sees it: away until told otherwise, and choosy about models."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.asked = asyncio.Event()
        self.recorded: list[UUID] = []

    async def __call__(self, calls: Sequence[ModelCall]) -> None:
        self.asked.set()
        if self.away:
            raise DependencyDown("away", reason="QUOTA_UNAVAILABLE")
        for one in calls:
            operation_message(one)
        if any(one.model == "unheard-of" for one in calls):
            raise InvalidInput("there is no price", field="operations[0].model")
        self.recorded += [one.operation_id for one in calls]


async def recorded(databases: Mapping[str, str], least: int) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(databases["quota"])
    try:
        rows: list[asyncpg.Record] = []
        while len(rows) < least:
            rows = await connection.fetch("SELECT * FROM quota.ai_operations ORDER BY created_at")
        return rows
    finally:
        await connection.close()


async def explained(suite: Suite, *pages: str) -> cache_pb2.ExplainPageResponse:
    uploaded = await suite.upload("ada", lecture(*pages))
    return await suite.explain("ada", uploaded.document.pdf_hash)


async def test_a_call_is_recorded_with_its_tokens_price_and_payer(
    cluster: Suite, start_worker: StartWorker, databases: Mapping[str, str]
) -> None:
    async with start_worker():
        answer = await explained(cluster, "A tree is a graph.")
        [row] = await recorded(databases, 1)

    assert str(row["generation_id"]) == answer.generation_id
    assert (row["user_id"], row["model"], row["outcome"]) == ("ada", "gpt-4.1-mini", "ok")
    tokens = (row["input_tokens"], row["cached_input_tokens"], row["output_tokens"])
    assert tokens == (900, 100, 80)
    assert row["cost_nanodollars"] == COST
    assert (row["attempt"], row["page"]) == (1, 1)


async def test_a_call_that_failed_is_recorded_with_what_it_cost(
    cluster: Suite, start_worker: StartWorker, databases: Mapping[str, str], model: FakeOpenAI
) -> None:
    model.always(fake.refusal())
    async with start_worker():
        await explained(cluster, "A tree is a graph.")
        [row] = await recorded(databases, 1)

    assert (row["outcome"], row["cost_nanodollars"]) == ("content_refused", COST)
    assert row["user_id"] == "ada"


async def test_calls_made_while_quota_is_away_are_recorded_when_it_is_back() -> None:
    quota = Receiver(away=True)
    operations = Operations(quota)
    calls = [call() for _ in range(250)]
    async with operations.reporting():
        for one in calls:
            operations.report(one)
        await quota.asked.wait()
        quota.away = False
        await until(lambda: len(quota.recorded) == 250)

    assert quota.recorded == [one.operation_id for one in calls]


async def test_one_refused_call_does_not_hide_its_neighbours() -> None:
    quota, before = Receiver(), lost("refused")
    operations = Operations(quota)
    calls = [call(), call("unheard-of"), call()]
    async with operations.reporting():
        for one in calls:
            operations.report(one)

    assert quota.recorded == [calls[0].operation_id, calls[2].operation_id]
    assert lost("refused") == before + 1


async def test_one_call_that_cannot_be_written_does_not_hide_its_neighbours() -> None:
    """Whether the worker goes on or stops: neither gets past the head of the queue otherwise."""
    quota, before = Receiver(), lost("refused")
    operations = Operations(quota)
    calls = [call(), replace(call(), usage=Usage(output_tokens=10**20)), call()]
    async with operations.reporting():
        for one in calls:
            operations.report(one)
        await until(lambda: len(quota.recorded) == 2)
        assert lost("refused") == before + 1
    for one in calls:
        operations.report(one)
    async with operations.reporting():
        pass

    first, _, last = (one.operation_id for one in calls)
    assert quota.recorded == [first, last, first, last]
    assert lost("refused") == before + 2


async def test_memory_is_bounded_while_quota_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 5)
    quota, before = Receiver(), lost("overflow")
    operations = Operations(quota)
    async with operations.reporting():
        for _ in range(8):
            operations.report(call())

    assert (len(quota.recorded), lost("overflow")) == (5, before + 3)


async def test_what_cannot_be_told_at_the_end_is_counted_as_lost() -> None:
    quota, before = Receiver(away=True), lost("stopped")
    operations = Operations(quota)
    async with operations.reporting():
        operations.report(call())

    assert lost("stopped") == before + 1


async def test_what_is_left_when_the_worker_stops_is_told_once() -> None:
    quota = Receiver()
    operations = Operations(quota)
    calls = [call() for _ in range(450)]
    async with operations.reporting():
        for one in calls:
            operations.report(one)

    assert quota.recorded == [one.operation_id for one in calls]


async def test_the_offline_explainer_is_recorded_at_no_cost(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    async with running_suite(databases, keys, tmp_path) as suite:
        await explained(suite, "A tree is a graph without cycles.")
        [row] = await recorded(databases, 1)

    assert (row["model"], row["cost_nanodollars"], row["outcome"]) == (OFFLINE_MODEL, 0, "ok")


async def test_pages_are_explained_though_quota_cannot_record(
    cluster: Suite, start_worker: StartWorker, model: FakeOpenAI
) -> None:
    nobody_listens: dict[str, Any] = {"quota_address": "127.0.0.1:1"}
    async with start_worker(**nobody_listens):
        answer = await explained(cluster, "A tree is a graph.")
        async with asyncio.timeout(60):
            while True:
                generation = await cluster.generation(answer.generation_id)
                if generation.status == cache_pb2.GENERATION_STATUS_READY:
                    break
