"""The model group of the fault matrix: every way a provider can fail, through the whole suite.

Each row: the class of the failure, how often the provider is called, that everybody who paid is
refunded, that nothing is stored as ready, and that Quota recorded what the provider counted.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

import asyncpg
import pytest
from glossa.cache.v1 import cache_pb2

from tests import fake_openai as fake
from tests.fake_openai import FAILURES, Answer, Count, FakeOpenAI, Question
from tests.suite import Suite, lecture
from tests.worker.conftest import StartWorker
from tests.worker.pages import FAILED, READY, Sheet, document, explained
from tests.worker.test_lease_loop import count, until_ended, until_generation
from tests.worker.waiting import until

# Three attempts, each with one call.
RETRIED = 3
ONCE = 1
# A provider that is waited for is not waited for long.
UNITS = 1000
HASTY = {"model_call_seconds": 0.5, "model_quota_pause_seconds": 0.2}


@dataclass(frozen=True, kw_only=True)
class Books:
    """What is written down about users, generations and costs."""

    connection: "asyncpg.Connection[Any]"

    async def balance(self, user: str) -> int:
        balance: int = await self.connection.fetchval(
            "SELECT balance_units FROM quota.accounts WHERE user_id = $1", user
        )
        return balance

    async def count(self) -> Count:
        row = await self.connection.fetchrow(
            "SELECT count(*) AS calls, coalesce(sum(input_tokens), 0)::bigint AS input_tokens,"
            " coalesce(sum(cached_input_tokens), 0)::bigint AS cached_tokens,"
            " coalesce(sum(output_tokens), 0)::bigint AS output_tokens FROM quota.ai_operations"
        )
        assert row is not None
        return Count(**dict(row))

    async def until_refunded(self, user: str) -> None:
        while await self.balance(user) != UNITS:
            pass

    async def until_counted(self, model: FakeOpenAI) -> None:
        """Calls are reported in batches; none may ever be too many."""
        while (count := await self.count()).calls < model.calls:
            pass
        assert asdict(count) == asdict(model.count)

    async def ready(self) -> int:
        ready: int = await self.connection.fetchval(
            "SELECT count(*) FROM cache.generations WHERE status = 'ready' OR stickers IS NOT NULL"
        )
        return ready


@pytest.fixture
async def books(admin_url: str) -> AsyncIterator[Books]:
    connection = await asyncpg.connect(admin_url)
    yield Books(connection=connection)
    await connection.close()


@pytest.mark.parametrize(
    ("failure", "reason", "calls"),
    [
        ("rate-limit", "MODEL_RATE_LIMITED", RETRIED),
        ("insufficient-quota", "MODEL_QUOTA_EXHAUSTED", RETRIED),
        ("error-500", "MODEL_UNAVAILABLE", RETRIED),
        ("error-503", "MODEL_UNAVAILABLE", RETRIED),
        ("silence", "MODEL_TIMEOUT", RETRIED),
        ("drip", "MODEL_DRIPPING", RETRIED),
        ("endless", "MODEL_ENDLESS", RETRIED),
        ("reset", "MODEL_UNAVAILABLE", RETRIED),
        ("html", "MODEL_FOREIGN_ANSWER", RETRIED),
        ("empty", "MODEL_EMPTY", RETRIED),
        ("truncated", "MODEL_TRUNCATED", RETRIED),
        ("nul", "MODEL_GARBLED", RETRIED),
        ("refusal", "CONTENT_REFUSED", ONCE),
        ("wrong-schema", "MODEL_BAD_OUTPUT", ONCE),
        ("large", "MODEL_ANSWER_TOO_LARGE", ONCE),
    ],
)
async def test_a_page_the_model_fails_is_refunded_to_all_and_never_ready(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    books: Books,
    failure: str,
    reason: str,
    calls: int,
) -> None:
    model.always(FAILURES[failure]())
    content = lecture("A tree is a connected graph without cycles.")
    async with start_worker(**HASTY):
        generation = await explained(cluster, content)
        await books.until_refunded("ada")
        await books.until_counted(model)

    assert (generation.status, generation.error.reason) == (FAILED, reason)
    assert (model.calls, generation.attempts) == (calls, calls)
    assert await books.ready() == 0


async def test_hostile_output_is_stored_inert(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, books: Books
) -> None:
    model.always(FAILURES["script"]())
    async with start_worker():
        generation = await explained(cluster, lecture("A heap is a tree."))
        await books.until_counted(model)

    assert generation.status == READY
    [sticker] = generation.stickers
    assert sticker.title == "Heap"
    assert sticker.body_markdown == "A heap grows  up. x evil.example/steal"


async def test_a_pause_the_provider_asks_for_is_kept(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, books: Books
) -> None:
    """By the attempt that was told, through the Cache, and by all others of the process."""
    model.always(fake.error(429, retry_after="1"))
    asked_at: list[float] = []
    usual = model.answer

    def answer(question: Question) -> Answer:
        asked_at.append(asyncio.get_running_loop().time())
        return usual(question) if len(asked_at) == 1 else fake.notes()

    model.answer = answer
    async with start_worker():
        first = await explained(cluster, lecture("A tree is a graph."))
        second = await explained(cluster, lecture("A heap is a tree."), user="bob")

    assert (first.status, first.attempts, second.attempts) == (READY, 2, 1)
    assert asked_at[1] - asked_at[0] >= 1.0


async def test_a_used_up_account_is_not_asked_again_and_costs_only_the_first_an_attempt(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, books: Books
) -> None:
    model.always(FAILURES["insufficient-quota"]())
    given_back = count("glossa_worker_attempts_total", result="given_back")
    asked = []
    async with start_worker(model_hold_seconds=0.05, concurrency=2):
        for number in range(4):
            user = f"user-{number}"
            uploaded = await cluster.upload(user, lecture(f"Page {number} is about trees."))
            asked.append((await cluster.explain(user, uploaded.document.pdf_hash)).generation_id)
            if number == 0:
                await until_generation(
                    cluster, asked[0], lambda one: one.stage == cache_pb2.STAGE_RETRYING
                )
        await until(
            lambda: count("glossa_worker_attempts_total", result="given_back") > given_back + 8
        )
    tried = await books.connection.fetch(
        "SELECT generation_id, attempts - released AS tried, status,"
        " extract(epoch FROM run_after - now()) AS seconds FROM cache.generations"
    )

    assert model.calls == 1
    assert {row["status"] for row in tried} == {"generating"}
    for row in tried:
        first = str(row["generation_id"]) == asked[0]
        # The one that asked comes back after a quarter of an hour; the others only wait.
        assert (row["tried"], row["seconds"] > 800) == ((1, True) if first else (0, False))


async def test_whoever_is_held_back_is_seen_to_wait_and_served_after_the_pause(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, books: Books
) -> None:
    answers = iter([fake.error(429, retry_after="1")])
    model.answer = lambda question: next(answers, fake.notes())
    async with start_worker(model_hold_seconds=0.05):
        first = await cluster.upload("ada", lecture("A tree is a graph."))
        told = await cluster.explain("ada", first.document.pdf_hash)
        await until_generation(
            cluster, told.generation_id, lambda one: one.stage == cache_pb2.STAGE_RETRYING
        )
        second = await explained(cluster, lecture("A heap is a tree."), user="bob")
        await until_ended(cluster, told.generation_id)
    stages = await books.connection.fetch(
        "SELECT stage FROM worker.generation_events WHERE generation_id = $1 ORDER BY sequence",
        second.generation_id,
    )

    assert second.status == READY
    assert "queued" in [row["stage"] for row in stages]
    assert await books.balance("bob") == UNITS - 1


async def test_a_provider_that_recovers_is_used_again_and_only_answers_are_paid(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, books: Books
) -> None:
    failures = iter(["insufficient-quota", "html"])
    model.answer = lambda question: (
        FAILURES[name]() if (name := next(failures, "")) else fake.lifelike(question)
    )
    page = Sheet(text="A tree has six nodes and two leaves here.", pictures=[1])
    async with start_worker(**HASTY):
        generation = await explained(cluster, document(page))
        await books.until_counted(model)

    assert (generation.status, generation.attempts, model.calls) == (READY, 3, 4)
    assert await books.balance("ada") == UNITS - 1


async def test_everybody_who_waits_for_a_failed_page_gets_the_units_back(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, books: Books
) -> None:
    model.gate.clear()
    model.always(fake.refusal())
    content, users = lecture("A tree is a graph."), ["ada", "bob", "cy"]
    async with start_worker():
        for user in users:
            uploaded = await cluster.upload(user, content)
            asked = await cluster.explain(user, uploaded.document.pdf_hash)
        model.gate.set()
        generation = await until_ended(cluster, asked.generation_id)
        for user in users:
            await books.until_refunded(user)

    assert (generation.status, model.calls) == (FAILED, 1)


async def test_a_crowd_of_failing_pages_ends_with_every_unit_back(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, books: Books
) -> None:
    """All failures at once, in one worker: none spoils another's class, count or refund."""
    for_others_too = ("script", "retry-after", "insufficient-quota")
    names = [name for name in FAILURES if name not in for_others_too]
    model.answer = lambda question: FAILURES[question.material["page_text"].split()[0]]()
    async with start_worker(**HASTY, concurrency=4):
        asked = {}
        for name in names:
            uploaded = await cluster.upload(name, lecture(f"{name} is how this page fails."))
            answer = await cluster.explain(name, uploaded.document.pdf_hash)
            asked[name] = answer.generation_id
        ended = {name: await until_ended(cluster, one) for name, one in asked.items()}
        for name in names:
            await books.until_refunded(name)
        await books.until_counted(model)

    assert {one.status for one in ended.values()} == {FAILED}
    assert await books.ready() == 0
