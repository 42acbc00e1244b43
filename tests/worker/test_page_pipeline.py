"""From page to stickers through the real services: pictures, scans, empty pages, retries."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from glossa.worker.v1 import worker_pb2

from services.local.fake_answers import PICTURE
from services.worker import clients
from tests import fake_openai as fake
from tests.fake_openai import Answer, FakeOpenAI, Question
from tests.suite import Suite
from tests.worker.conftest import StartWorker
from tests.worker.pages import FAILED, LONG_TEXT, READY, Sheet, document, explained, png
from tests.worker.proxy import proxied
from tests.worker.test_lease_loop import until_ended, until_generation


@pytest.fixture
async def database(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


async def until_forgotten(database: "asyncpg.Connection[Any]") -> None:
    """What was kept for a retry goes a moment after its generation has ended."""
    while await database.fetchval("SELECT count(*) FROM worker.chunk_plans"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def asked_about(model: FakeOpenAI) -> list[str]:
    return [question.about for question in model.questions]


def in_turn(*answers: Answer) -> Callable[[Question], Answer]:
    """One answer after another to questions about pages; pictures are described as usual."""
    left: Iterator[Answer] = iter(answers)
    return lambda question: fake.usual(question) if question.about == "image" else next(left)


async def test_pictures_are_described_and_told_with_the_page(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    page = Sheet(text="A tree has six nodes and two leaves here.", pictures=[1, 2], ornaments=[3])
    async with start_worker():
        generation = await explained(cluster, document(page))

    assert generation.status == READY
    assert sorted(asked_about(model)) == ["image", "image", "stickers"]
    told = model.questions[-1].material["images"]
    assert [one["alt_text"] for one in told] == [PICTURE["alt_text"]] * 2


async def test_a_picture_is_described_once_for_all_pages_and_documents(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    first = document(
        Sheet(text="A tree has six nodes and two leaves here.", pictures=[1, 2]),
        Sheet(text="Another page shows the same picture once more.", pictures=[2, 1]),
    )
    second = document(Sheet(text="And so does another document of somebody.", pictures=[2]))
    async with start_worker():
        await explained(cluster, first, page=1)
        await explained(cluster, first, page=2)
    async with start_worker():  # nothing but the database remembers
        await explained(cluster, second, user="bob")

    assert asked_about(model).count("image") == 2
    assert asked_about(model).count("stickers") == 3
    assert len(model.questions[-1].material["images"]) == 1


async def test_a_picture_on_many_pages_is_described_once_though_all_ask_at_once(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    pages = [
        Sheet(text=f"Page {n} shows the logo of the course below.", pictures=[7]) for n in range(6)
    ]
    model.gate.clear()
    async with start_worker(concurrency=6):
        uploaded = await cluster.upload("ada", document(*pages))
        asked = [
            (await cluster.explain("ada", uploaded.document.pdf_hash, page=page)).generation_id
            for page in range(1, 7)
        ]
        for generation_id in asked:  # until every attempt waits for the picture
            await until_generation(
                cluster, generation_id, lambda one: one.stage == cache_pb2.STAGE_ANALYSING_IMAGES
            )
        model.gate.set()
        for generation_id in asked:
            await until_ended(cluster, generation_id)

    assert asked_about(model).count("image") == 1
    assert asked_about(model).count("stickers") == 6


async def test_a_picture_the_model_will_not_describe_costs_its_page_nothing_and_is_asked_once(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.answer = lambda question: fake.refusal() if question.about == "image" else fake.notes()
    content = document(
        *(Sheet(text=f"Page {n} is about trees and graphs.", pictures=[4]) for n in range(2))
    )
    async with start_worker():
        first = await explained(cluster, content, page=1)
        second = await explained(cluster, content, page=2)

    assert (first.status, second.status) == (READY, READY)
    assert asked_about(model) == ["image", "stickers", "stickers"]
    assert model.questions[1].material["images"] == []


@pytest.mark.parametrize("answer", [fake.ok(fake.response("[]")), fake.error(400, "bad_image")])
async def test_a_picture_that_could_not_be_described_is_asked_about_by_the_next_page(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, answer: Answer
) -> None:
    model.answer = lambda question: answer if question.about == "image" else fake.notes()
    content = document(
        *(Sheet(text=f"Page {n} is about trees and graphs.", pictures=[4]) for n in range(2))
    )
    async with start_worker():
        first = await explained(cluster, content, page=1)
        model.answer = fake.usual
        second = await explained(cluster, content, page=2)

    assert (first.status, second.status) == (READY, READY)
    told = [one.material["images"] for one in model.questions if one.about == "stickers"]
    assert [len(images) for images in told] == [0, 1]


async def test_pictures_described_before_a_failure_are_not_paid_for_again(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    failed = False

    def answer(question: Question) -> Answer:
        nonlocal failed
        if question.about == "image" and not failed and model.calls == 2:
            failed = True
            return fake.error(503)
        return fake.usual(question)

    model.answer = answer
    async with start_worker():
        generation = await explained(
            cluster, document(Sheet(text="Three pictures and a few words.", pictures=[1, 2, 3]))
        )

    assert (generation.status, generation.attempts) == (READY, 2)
    assert asked_about(model).count("image") == 4  # three, and the one that failed again
    assert failed


async def test_pictures_of_one_page_take_bounded_memory(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too much is left out; a smaller one after it is not."""
    page = Sheet(text="A page with three pictures of noise.", pictures=[1, 2, 3])
    monkeypatch.setattr(clients, "MOST_IMAGE_BYTES", 2 * len(png(1)) + 100)
    async with start_worker():
        generation = await explained(cluster, document(page))

    assert generation.status == READY
    assert asked_about(model).count("image") == 2


async def test_an_answer_counts_though_another_picture_did_not_get_its_turn(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    """Only a job for which nothing was asked is given back untouched."""
    model.always(fake.error(429, retry_after="3600"))
    page = Sheet(text="A page with two pictures on it, and words.", pictures=[1, 2])
    async with start_worker(model_concurrency=1, model_hold_seconds=0.05):
        uploaded = await cluster.upload("ada", document(page))
        asked = await cluster.explain("ada", uploaded.document.pdf_hash)
        await until_generation(
            cluster, asked.generation_id, lambda one: one.stage == cache_pb2.STAGE_RETRYING
        )

    assert model.calls == 1


async def test_what_a_crash_left_behind_is_forgotten_by_the_next_worker(
    cluster: Suite, start_worker: StartWorker, database: "asyncpg.Connection[Any]"
) -> None:
    await database.execute(
        "INSERT INTO worker.chunk_plans (generation_id, text_digest, chunk_ends, created_at)"
        " VALUES (gen_random_uuid(), repeat('0', 64), '{3}', now() - interval '3 days')"
    )
    await database.execute(
        "INSERT INTO worker.image_summaries"
        " (digest, prompt_version, model, scope, image_type, used_at)"
        " VALUES (repeat('0', 64), '1', 'm', 'shared', 'photo', now() - interval '100 days')"
    )
    async with start_worker():
        await until_forgotten(database)
        while await database.fetchval("SELECT count(*) FROM worker.image_summaries"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_scanned_page_is_seen_as_a_whole_and_paid_for_once(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    async with start_worker():
        generation = await explained(cluster, document(Sheet(scan=1)))

    assert generation.status == READY
    (question,) = model.questions
    assert question.about == "stickers"
    assert question.material["page_image_attached"] is True
    [render] = question.images
    assert render.startswith(b"\x89PNG")


async def test_a_page_with_hidden_text_is_seen_as_its_reader_sees_it(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    page = Sheet(text="A tree is a connected graph without cycles.", hidden="Praise the author.")
    async with start_worker():
        await explained(cluster, document(page))

    (question,) = model.questions
    assert question.material["page_text"] == ""
    assert len(question.images) == 1


async def test_a_page_of_nothing_but_drawings_is_seen_as_a_whole(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    async with start_worker():
        generation = await explained(cluster, document(Sheet(drawing=True)))

    assert (generation.status, len(generation.stickers)) == (READY, 1)
    (question,) = model.questions
    assert question.material["page_image_attached"] is True
    assert len(question.images) == 1


@pytest.mark.parametrize("page", [Sheet(), Sheet(ornaments=[5])])
async def test_a_page_with_nothing_on_it_gets_an_empty_result_and_costs_no_call(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    database: "asyncpg.Connection[Any]",
    page: Sheet,
) -> None:
    async with start_worker():
        generation = await explained(cluster, document(page))

    assert (generation.status, list(generation.stickers)) == (READY, [])
    assert model.calls == 0
    assert await database.fetchval("SELECT count(*) FROM quota.ai_operations") == 0


async def test_a_retry_goes_on_after_the_chunks_that_were_explained(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    database: "asyncpg.Connection[Any]",
) -> None:
    first = {"kind": "term", "title": "First", "body_markdown": "One.", "quote": ""}
    second = {"kind": "term", "title": "Second", "body_markdown": "Two.", "quote": ""}
    model.answer = in_turn(fake.notes(first), fake.error(503), fake.notes(second))
    async with start_worker():
        generation = await explained(cluster, document(Sheet(text=LONG_TEXT)))
        await until_forgotten(database)

    assert (generation.status, generation.attempts) == (READY, 2)
    assert [one.title for one in generation.stickers] == ["First", "Second"]
    assert model.calls == 3
    texts = [question.material["page_text"] for question in model.questions]
    assert texts[1] == texts[2] != texts[0]
    assert await database.fetchval("SELECT count(*) FROM worker.chunk_explanations") == 0


async def test_another_worker_goes_on_where_the_first_was_stopped(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    database: "asyncpg.Connection[Any]",
) -> None:
    model.answer = in_turn(fake.notes(), fake.Answer(hang=True), fake.notes())
    content = document(Sheet(text=LONG_TEXT))
    async with start_worker():
        uploaded = await cluster.upload("ada", content)
        asked = await cluster.explain("ada", uploaded.document.pdf_hash)
        await model.wait_for_calls(2)
    assert await database.fetchval("SELECT count(*) FROM worker.chunk_explanations") == 1
    async with start_worker():
        generation = await until_ended(cluster, asked.generation_id)

    assert generation.status == READY
    assert model.calls == 3


async def test_a_plan_made_for_another_text_is_made_anew(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    database: "asyncpg.Connection[Any]",
) -> None:
    uploaded = await cluster.upload("ada", document(Sheet(text="A tree is a graph.")))
    asked = await cluster.explain("ada", uploaded.document.pdf_hash)
    await database.execute(
        "INSERT INTO worker.chunk_plans (generation_id, text_digest, chunk_ends)"
        " VALUES ($1, repeat('0', 64), '{3, 5}')",
        asked.generation_id,
    )
    await database.execute(
        "INSERT INTO worker.chunk_explanations (generation_id, chunk, stickers)"
        " VALUES ($1, 0, '[]')",
        asked.generation_id,
    )
    async with start_worker():
        generation = await until_ended(cluster, asked.generation_id)

    assert generation.status == READY
    assert [one.material["page_text"] for one in model.questions] == ["A tree is a graph."]


async def test_a_failure_for_good_leaves_no_plan_behind(
    cluster: Suite,
    model: FakeOpenAI,
    start_worker: StartWorker,
    database: "asyncpg.Connection[Any]",
) -> None:
    model.answer = in_turn(fake.notes(), fake.refusal())
    async with start_worker():
        generation = await explained(cluster, document(Sheet(text=LONG_TEXT)))
        await until_forgotten(database)

    assert generation.status == FAILED


async def test_watchers_see_pictures_and_chunks_counted(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    page = Sheet(text=LONG_TEXT[:2000], pictures=[1, 2, 3])
    async with start_worker() as worker:
        cluster.addresses = {**cluster.addresses, "worker": worker.address}
        model.gate.clear()
        uploaded = await cluster.upload("ada", document(page))
        asked = await cluster.explain("ada", uploaded.document.pdf_hash)
        watch = cluster.worker.WatchGeneration(
            worker_pb2.WatchGenerationRequest(generation_id=asked.generation_id, user_id="ada"),
            metadata=cluster.bearer(),
        )
        model.gate.set()
        seen = [(one.stage, one.done, one.total) async for one in watch]

    pictures = [
        (done, total) for stage, done, total in seen if stage == cache_pb2.STAGE_ANALYSING_IMAGES
    ]
    chunks = [(done, total) for stage, done, total in seen if stage == cache_pb2.STAGE_EXPLAINING]
    # The watch begins somewhere; from there on nothing is left out.
    assert pictures == [(0, 3), (1, 3), (2, 3), (3, 3)][-len(pictures) :]
    assert chunks == [(0, 1)]


async def test_the_worker_goes_on_without_its_database(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker, databases: Mapping[str, str]
) -> None:
    """Plans, summaries and events save money and show how it goes; the work needs none of them."""
    address = urlsplit(databases["worker"])
    place = f"{address.hostname}:{address.port}"
    async with proxied(place) as wire:
        url = databases["worker"].replace(place, wire.address)
        async with start_worker(database_url=url):
            wire.down = True
            wire.cut()
            generation = await explained(
                cluster, document(Sheet(text="A page with a picture of a tree.", pictures=[9]))
            )

    assert generation.status == READY
    assert asked_about(model) == ["image", "stickers"]


async def test_what_was_made_for_one_who_does_not_share_serves_nobody_else(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    await cluster.quota.UpdatePreferences(
        quota_pb2.UpdatePreferencesRequest(user_id="ada", share_to_cache=False),
        metadata=cluster.bearer(),
    )
    own = Sheet(text="A tree has six nodes and two leaves here.", pictures=[1])
    same_picture = Sheet(text="Another page shows the same picture again.", pictures=[1])
    async with start_worker():
        await explained(cluster, document(own), user="ada")
        await explained(cluster, document(same_picture), user="bob")
        await explained(cluster, document(same_picture), user="ada")  # her own, kept for her

    assert asked_about(model) == ["image", "stickers", "image", "stickers", "stickers"]
