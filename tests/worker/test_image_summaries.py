"""What is kept of pictures and chunks, and for how long."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from uuid import uuid4

import pytest

from services.runtime.database import Database, open_database
from services.worker.chunk_store import ChunkStore
from services.worker.chunks import ChunkPlan, plan_chunks
from services.worker.domain import Box, ImageSummary, ImageType, Page, Sticker, StickerKind
from services.worker.image_store import ImageStore

DIGEST = "a" * 64
CHART = ImageSummary(digest=DIGEST, image_type=ImageType.CHART, ocr_text="x", alt_text="A chart.")
STICKER = Sticker(
    sticker_id="s1",
    kind=StickerKind.TERM,
    title="Heap",
    body_markdown="A tree.",
    quote="heap",
    box=Box(left=0.1, top=0.2, right=0.3, bottom=0.4),
)
DAY = timedelta(days=1)


@pytest.fixture
async def database(databases: Mapping[str, str]) -> AsyncIterator[Database]:
    async with open_database(databases["worker"], application_name="test") as database:
        yield database


def images(database: Database, *, prompts: str = "1", model: str = "m") -> ImageStore:
    return ImageStore(database, prompt_version=prompts, model=model)


def plan_of(text: str) -> ChunkPlan:
    return plan_chunks(Page(page=1, text=text, locale="en"))


async def age(database: Database, table: str, column: str, by: timedelta) -> None:
    async with database.connection() as connection:
        await connection.execute(
            f"UPDATE worker.{table} SET {column} = {column} - $1::interval", by
        )


async def test_a_summary_belongs_to_a_prompt_version_and_a_model(database: Database) -> None:
    await images(database).save_summary(CHART, "shared")

    assert await images(database).list_summaries([DIGEST, "b" * 64], "shared") == {DIGEST: CHART}
    assert await images(database, prompts="2").list_summaries([DIGEST], "shared") == {}
    assert await images(database, model="n").list_summaries([DIGEST], "shared") == {}


async def test_two_processes_may_describe_the_same_picture_and_the_first_stays(
    database: Database,
) -> None:
    other = ImageSummary(digest=DIGEST, image_type=ImageType.PHOTO)
    await images(database).save_summary(CHART, "shared")
    await asyncio.gather(*(images(database).save_summary(other, "shared") for _ in range(5)))

    assert await images(database).list_summaries([DIGEST], "shared") == {DIGEST: CHART}


async def test_summaries_that_are_used_are_kept(database: Database) -> None:
    store = images(database)
    await store.save_summary(CHART, "shared")
    await age(database, "image_summaries", "used_at", 60 * DAY)
    await store.list_summaries([DIGEST], "shared")  # some page shows it still
    await age(database, "image_summaries", "used_at", 60 * DAY)

    assert await store.prune(90 * DAY) == 0
    await age(database, "image_summaries", "used_at", 60 * DAY)
    assert await store.prune(90 * DAY) == 1
    assert await store.list_summaries([DIGEST], "shared") == {}


async def test_chunks_come_back_as_they_were_kept(database: Database) -> None:
    store, generation_id, plan = ChunkStore(database), uuid4(), plan_of("word " * 3_000)
    await store.resume(generation_id, plan)
    await store.save_explained(generation_id, plan, 1, (STICKER,))

    assert await store.resume(generation_id, plan) == (plan, {1: (STICKER,)})
    await store.forget(generation_id)
    assert await store.resume(generation_id, plan) == (plan, {})


async def test_a_plan_cut_otherwise_by_an_earlier_version_is_gone_on_with(
    database: Database,
) -> None:
    store, generation_id, plan = ChunkStore(database), uuid4(), plan_of("word " * 3_000)
    earlier = ChunkPlan(text_digest=plan.text_digest, ends=(7_000, 15_000))
    await store.resume(generation_id, earlier)
    await store.save_explained(generation_id, earlier, 0, (STICKER,))

    assert await store.resume(generation_id, plan) == (earlier, {0: (STICKER,)})


async def test_a_late_attempt_neither_overwrites_nor_revives_what_is_kept(
    database: Database,
) -> None:
    store, generation_id, plan = ChunkStore(database), uuid4(), plan_of("a heap")
    await store.resume(generation_id, plan)
    await store.save_explained(generation_id, plan, 0, (STICKER,))
    await store.save_explained(generation_id, plan, 0, ())
    assert (await store.resume(generation_id, plan))[1] == {0: (STICKER,)}

    await store.forget(generation_id)
    await store.save_explained(generation_id, plan, 0, (STICKER,))
    assert await store.prune(timedelta(0)) == 0


async def test_plans_a_crash_left_behind_go_by_age(database: Database) -> None:
    store, plan = ChunkStore(database), plan_of("a heap")
    old, new = uuid4(), uuid4()
    await store.resume(old, plan)
    await store.save_explained(old, plan, 0, (STICKER,))
    await age(database, "chunk_plans", "created_at", 3 * DAY)
    await store.resume(new, plan)

    assert await store.prune(2 * DAY) == 1
    assert await store.resume(old, plan) == (plan, {})
