"""Forty pages of all kinds, end to end: every one ready, progress true, costs as the model's own.

`GLOSSA_REAL_PDF` names a PDF of at least forty pages to take instead of the one made here.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.registry.v1 import registry_pb2
from glossa.worker.v1 import worker_pb2

from services.local.fake_answers import lifelike
from services.runtime.settings import ExplanationSettings
from services.worker.chunks import plan_chunks
from services.worker.domain import Page
from services.worker.material import neutral
from tests.fake_openai import FakeOpenAI, Question
from tests.suite import Keys, Suite, running_suite
from tests.worker.conftest import QUICK_CACHE
from tests.worker.pages import LONG_TEXT, Sheet, document
from tests.worker.waiting import until

PAGES = 40
NO_LIMITS = {"soft_limit": 10_000, "hard_limit": 10_000, "daily_limit": 10_000}
# Nano-dollars for one token of gpt-4.1-mini: new, cached, written.
PRICES = (400, 100, 1600)

QUEUED, READING, ANALYSING, EXPLAINING, READY = (
    cache_pb2.STAGE_QUEUED,
    cache_pb2.STAGE_READING,
    cache_pb2.STAGE_ANALYSING_IMAGES,
    cache_pb2.STAGE_EXPLAINING,
    cache_pb2.STAGE_READY,
)
ORDER: list[int] = [QUEUED, READING, ANALYSING, EXPLAINING, READY]


def forty_pages() -> bytes:
    """Text, pictures that come again, scans, long pages, empty pages."""
    real = os.environ.get("GLOSSA_REAL_PDF")
    if real:
        return Path(real).read_bytes()
    return document(*(_sheet(number) for number in range(1, PAGES + 1)))


def _sheet(number: int) -> Sheet:
    text = f"Page {number} is about trees, graphs and heaps."
    match number % 8:
        case 1:
            return Sheet(text=text, pictures=[number % 3, 3 + number % 4], ornaments=[7])
        case 3:
            return Sheet(text=f"{text} {LONG_TEXT}")
        case 5:
            return Sheet(scan=number)
        case 7:
            return Sheet()
    return Sheet(text=text)


@asynccontextmanager
async def street(
    databases: Mapping[str, str], keys: Keys, folder: Path, explanation: ExplanationSettings
) -> AsyncIterator[Suite]:
    async with running_suite(
        databases,
        keys,
        folder,
        explanation=explanation,
        cache=QUICK_CACHE,
        quota=NO_LIMITS,
        worker={"renew_seconds": 0.2},
    ) as suite:
        yield suite


class Onlooker:
    """Watches every page, and looks at what is told of it whenever the model is asked."""

    def __init__(self, suite: Suite, database: "asyncpg.Connection[Any]") -> None:
        self._suite = suite
        self._database = database
        self._looking = asyncio.Lock()
        # Which pages a chunk stands on, and as which of how many; scans have no text to tell by.
        self._places: dict[str, list[tuple[int, int, int]]] = {}
        self._generations: dict[int, str] = {}
        self.seen: dict[int, list[tuple[int, int, int]]] = {}
        self.ready: dict[int, int] = {}
        self.looks = 0
        self.untrue: list[object] = []

    async def read(self, pdf_hash: str) -> None:
        for page in range(1, PAGES + 1):
            request = registry_pb2.GetPageContentRequest(pdf_hash=pdf_hash, page=page)
            parts = self._suite.registry.GetPageContent(
                request, metadata=self._suite.bearer("worker")
            )
            text = "".join([part.text.text async for part in parts])
            whole = Page(page=page, text=text, locale="en")
            chunks = plan_chunks(whole).cut(whole)
            for number, chunk in enumerate(chunks):
                place = (page, number, len(chunks))
                self._places.setdefault(neutral(chunk.text), []).append(place)

    async def ask_for_all(self, pdf_hash: str) -> None:
        async with asyncio.TaskGroup() as watches:
            for page in range(1, PAGES + 1):
                answer = await self._suite.explain("ada", pdf_hash, page=page)
                self._generations[page] = answer.generation_id
                watches.create_task(self._watch(answer.generation_id, page))

    async def _watch(self, generation_id: str, page: int) -> None:
        request = worker_pb2.WatchGenerationRequest(generation_id=generation_id, user_id="ada")
        updates = self._suite.worker.WatchGeneration(request, metadata=self._suite.bearer())
        async for update in updates:
            self.seen.setdefault(page, []).append((update.stage, update.done, update.total))
            if update.status == cache_pb2.GENERATION_STATUS_READY:
                self.ready[page] = len(update.stickers)

    async def look(self, question: Question) -> None:
        """While the model is asked about a chunk, the chunks before it are told as done."""
        if question.about == "stickers":
            places = self._places[question.material["page_text"]]
            told = [await self._newest(page) for page, _, _ in places]
            expected = [("explaining", number, total) for _, number, total in places]
            matches = any(one == other for one, other in zip(told, expected, strict=True))
        else:
            pages = list(self._generations)
            told = [await self._newest(page) for page in pages]
            matches = any(
                stage == "analysing_images" and done < total for stage, done, total in told
            )
        self.looks += 1
        if not matches:
            self.untrue.append((question.about, told))

    async def _newest(self, page: int) -> tuple[str, int, int]:
        await until(lambda: page in self._generations)
        async with self._looking:
            row = await self._database.fetchrow(
                "SELECT stage, done, total FROM worker.generation_events"
                " WHERE generation_id = $1 ORDER BY sequence DESC LIMIT 1",
                self._generations[page],
            )
        return (row["stage"], row["done"], row["total"]) if row else ("", 0, 0)

    def assert_all_was_told_in_order(self) -> None:
        for page, seen in self.seen.items():
            stages = [stage for stage, _, _ in seen]
            assert stages == sorted(stages, key=ORDER.index), (page, seen)
            assert seen[-1] == (READY, 0, 0), (page, seen)
            for stage in (ANALYSING, EXPLAINING):
                counted = [(done, total) for one, done, total in seen if one == stage]
                # One after another, of a total that never changes.
                first = counted[0][0] if counted else 0
                totals = {total for _, total in counted}
                assert [done for done, _ in counted] == list(range(first, first + len(counted)))
                assert len(totals) <= 1, (page, counted)


async def recorded(database: "asyncpg.Connection[Any]", calls: int) -> Mapping[str, int]:
    """Calls are reported in batches; none may be too many."""
    row: asyncpg.Record | None = None
    while row is None or row["calls"] < calls:
        row = await database.fetchrow(
            "SELECT count(*) AS calls, coalesce(sum(input_tokens), 0)::bigint AS input_tokens,"
            " coalesce(sum(cached_input_tokens), 0)::bigint AS cached_tokens,"
            " coalesce(sum(output_tokens), 0)::bigint AS output_tokens,"
            " coalesce(sum(cost_nanodollars), 0)::bigint AS cost FROM quota.ai_operations"
        )
    return dict(row)


@pytest.fixture
async def database(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


async def test_forty_pages_with_a_model_that_sees(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    explanation: ExplanationSettings,
    model: FakeOpenAI,
    database: "asyncpg.Connection[Any]",
) -> None:
    model.answer = lifelike
    async with street(databases, keys, tmp_path, explanation) as suite:
        onlooker = Onlooker(suite, database)
        model.before = onlooker.look
        pdf_hash = (await suite.upload("ada", forty_pages())).document.pdf_hash
        await onlooker.read(pdf_hash)
        await onlooker.ask_for_all(pdf_hash)
        told = await recorded(database, model.calls)
        spent = await database.fetchval(
            "SELECT cost_nanodollars FROM quota.spending WHERE kind = 'document' AND subject = $1",
            pdf_hash,
        )

    assert sorted(onlooker.ready) == list(range(1, PAGES + 1))
    assert (onlooker.untrue, onlooker.looks) == ([], model.calls)
    onlooker.assert_all_was_told_in_order()
    count = model.count
    new, cached, written = PRICES
    cost = (
        (count.input_tokens - count.cached_tokens) * new
        + count.cached_tokens * cached
        + count.output_tokens * written
    )
    assert told == {**asdict(count), "cost": cost}
    assert spent == cost
    pictures = [question for question in model.questions if question.about == "image"]
    assert len({question.images[0] for question in pictures}) == len(pictures)
    print(f"{model.calls} calls, {len(pictures)} pictures, {told}")


async def test_forty_pages_without_a_model(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    database: "asyncpg.Connection[Any]",
) -> None:
    async with street(databases, keys, tmp_path, ExplanationSettings()) as suite:
        onlooker = Onlooker(suite, database)
        pdf_hash = (await suite.upload("ada", forty_pages())).document.pdf_hash
        await onlooker.read(pdf_hash)
        await onlooker.ask_for_all(pdf_hash)
        told = await recorded(database, sum(1 for seen in onlooker.seen.values() if len(seen) > 2))

    assert sorted(onlooker.ready) == list(range(1, PAGES + 1))
    onlooker.assert_all_was_told_in_order()
    assert told["cost"] == told["input_tokens"] == 0
