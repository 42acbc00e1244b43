"""From document to Markdown through the real services: pages in order, pictures in words, gaps."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import asyncpg
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2

from services.local.fake_answers import PICTURE
from services.runtime.settings import ExplanationSettings
from services.worker import convert as convert_module
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAI
from tests.suite import Keys, Suite, running_suite
from tests.worker.conftest import StartWorker
from tests.worker.pages import FAILED, READY, Sheet, document
from tests.worker.test_lease_loop import until_ended

OFFLINE = ExplanationSettings.model_validate({"openai_api_key": ""})


async def convert(suite: Suite, content: bytes, user: str = "ada") -> cache_pb2.Generation:
    """The generation that converts a document, when it has ended."""
    uploaded = await suite.upload(user, content)
    request = cache_pb2.ConvertDocumentRequest(user_id=user, pdf_hash=uploaded.document.pdf_hash)
    answer = await suite.cache.ConvertDocument(request, metadata=suite.bearer())
    return await until_ended(suite, answer.generation_id)


def pages_of(markdown: str) -> list[str]:
    """What follows each page's comment."""
    before, *pages = markdown.split("<!-- page ")
    assert before == ""
    assert [int(page.split(" ")[0]) for page in pages] == list(range(1, len(pages) + 1))
    return [page.partition("-->")[2].strip() for page in pages]


async def test_without_a_model_a_document_is_converted_all_the_same(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    sheets = [Sheet(text=f"Page {n} tells about trees with {n} leaves.") for n in range(1, 13)]
    async with running_suite(databases, keys, tmp_path, explanation=OFFLINE) as suite:
        generation = await convert(suite, document(*sheets, Sheet(), Sheet(scan=5)))

    assert generation.status == READY, generation.error
    *written, empty, scan = pages_of(generation.markdown)
    assert written == [sheet.text for sheet in sheets]
    assert (empty, scan) == ("", convert_module.PICTURE_ONLY)


async def test_the_few_words_of_a_picture_page_are_kept(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    title = Sheet(text="Linear Algebra II", scan=3)
    async with running_suite(databases, keys, tmp_path, explanation=OFFLINE) as suite:
        generation = await convert(suite, document(title))

    [page] = pages_of(generation.markdown)
    assert "Linear Algebra II" in page
    assert convert_module.PICTURE_ONLY in page


async def test_a_scan_that_no_model_describes_leaves_a_note(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    model.always(fake.refusal())
    async with start_worker():
        generation = await convert(cluster, document(Sheet(scan=4)))

    assert generation.status == READY, generation.error
    assert pages_of(generation.markdown) == [convert_module.UNREAD_PICTURE]


async def test_pictures_and_scans_are_told_in_words(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    answers = iter([fake.picture(), fake.picture(ocr_text="Trees grow on scans.", alt_text="")])
    model.answer = lambda _: next(answers)  # the first page is read alone, for it tells how many
    made = document(
        Sheet(text="A tree has six nodes and two leaves here.", pictures=[1]), Sheet(scan=2)
    )
    async with start_worker():
        generation = await convert(cluster, made)

    assert generation.status == READY, generation.error
    page, scan = pages_of(generation.markdown)
    assert page.startswith("A tree has six nodes")
    assert PICTURE["alt_text"] in page
    assert scan == "Trees grow on scans."
    assert [question.about for question in model.questions] == ["image", "image"]


async def test_what_the_model_was_asked_is_put_to_who_asked_for_the_document(
    cluster: Suite, start_worker: StartWorker, admin_url: str
) -> None:
    async with start_worker():
        generation = await convert(cluster, document(Sheet(text="A tree.", pictures=[1])))

    connection = await asyncpg.connect(admin_url)
    recorded = await connection.fetch(
        "SELECT endpoint, user_id, input_tokens > 0 FROM quota.ai_operations"
        " WHERE generation_id = $1",
        generation.generation_id,
    )
    await connection.close()
    assert [tuple(row) for row in recorded] == [("convert_document", "ada", True)]


async def test_a_retry_does_not_pay_for_pictures_again(
    cluster: Suite, model: FakeOpenAI, start_worker: StartWorker
) -> None:
    answers = iter([fake.picture(), fake.error(500), fake.picture()])
    model.answer = lambda _: next(answers)
    made = document(
        Sheet(text="The first page has a picture.", pictures=[1]),
        Sheet(text="So has the second, and it is another.", pictures=[2]),
    )
    async with start_worker():
        generation = await convert(cluster, made)

    assert (generation.status, generation.attempts) == (READY, 2)
    assert len(model.questions) == 3


async def test_progress_counts_pages(
    cluster: Suite, start_worker: StartWorker, admin_url: str
) -> None:
    sheets = [Sheet(text=f"Page {n} tells about trees.") for n in range(1, 7)]
    async with start_worker():
        generation = await convert(cluster, document(*sheets))

    connection = await asyncpg.connect(admin_url)
    events = await connection.fetch(
        "SELECT done, total FROM worker.generation_events WHERE generation_id = $1"
        " AND stage = 'reading' AND total > 0 ORDER BY sequence",
        generation.generation_id,
    )
    await connection.close()
    assert [tuple(event) for event in events] == [(1, 6), (5, 6)]


async def test_more_than_can_be_handed_over_is_refused_and_given_back(
    cluster: Suite, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_module, "MOST_BYTES", 60)
    async with start_worker():
        generation = await convert(cluster, document(*[Sheet(text="Trees and more trees.")] * 3))

    assert (generation.status, generation.error.reason) == (FAILED, "CONVERSION_TOO_LARGE")
    assert generation.attempts == 1
    async with asyncio.timeout(20):
        while await _units_left(cluster) != 1000:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _units_left(suite: Suite) -> int:
    status = await suite.quota.GetQuotaStatus(
        quota_pb2.GetQuotaStatusRequest(user_id="ada"), metadata=suite.bearer()
    )
    return status.remaining_units


async def break_pages(admin_url: str, pdf_hash: str, *pages: int) -> None:
    """As if the Registry had found out that they cannot be read; it remembers that."""
    connection = await asyncpg.connect(admin_url)
    processed = "SELECT processed_at FROM registry.canonical_documents WHERE pdf_hash = $1"
    while not await connection.fetchval(processed, pdf_hash):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await connection.execute(
        "UPDATE registry.canonical_page_metadata SET error_reason = 'PDF_TOO_COMPLEX',"
        " word_count = NULL, images_count = NULL, is_scanned = NULL, has_hidden_text = NULL,"
        " fingerprint = NULL WHERE pdf_hash = $1 AND page = ANY($2::integer[])",
        pdf_hash,
        pages,
    )
    await connection.close()


@pytest.mark.parametrize("broken", [(1,), (2,), (1, 2), (1, 2, 3)])
async def test_a_page_that_cannot_be_read_leaves_a_note_unless_none_can(
    cluster: Suite, start_worker: StartWorker, admin_url: str, broken: tuple[int, ...]
) -> None:
    made = document(*(Sheet(text=f"Page {n} tells about trees.") for n in (1, 2, 3)))
    uploaded = await cluster.upload("ada", made)
    request = cache_pb2.ConvertDocumentRequest(user_id="ada", pdf_hash=uploaded.document.pdf_hash)
    answer = await cluster.cache.ConvertDocument(request, metadata=cluster.bearer())
    await break_pages(admin_url, uploaded.document.pdf_hash, *broken)
    async with start_worker():
        generation = await until_ended(cluster, answer.generation_id)

    if broken == (1, 2, 3):
        assert (generation.status, generation.error.reason) == (FAILED, "PDF_TOO_COMPLEX")
        assert generation.attempts == 1
        return
    note = "*This page could not be read: PDF\\_TOO\\_COMPLEX.*"
    pages = enumerate(pages_of(generation.markdown), 1)
    assert generation.status == READY
    assert tuple(number for number, page in pages if page == note) == broken


async def test_hidden_text_is_pointed_out(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    sheet = Sheet(text="A page about trees and leaves.", hidden="Nobody sees this line.")
    async with running_suite(databases, keys, tmp_path, explanation=OFFLINE) as suite:
        generation = await convert(suite, document(sheet))

    [page] = pages_of(generation.markdown)
    assert page.startswith(convert_module.HIDDEN_TEXT)
