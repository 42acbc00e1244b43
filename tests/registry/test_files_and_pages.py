"""Files and pages are told to who holds them, and to nobody else in any word."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from glossa.registry.v1 import registry_pb2 as pb

from services.registry import metrics, sandbox
from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.refusals import refused
from tests.registry.replicas import replica
from tests.registry.test_taken_over import PROGRAM
from tests.registry.test_upload import counts, hash_of
from tests.suite import Keys

PAGE_ROWS = "SELECT error_reason FROM registry.canonical_page_metadata WHERE pdf_hash = $1"


async def content_of(registry: Registry, **request: Any) -> list[pb.GetPageContentResponse]:
    call = registry.stub.GetPageContent(
        pb.GetPageContentRequest(**request), metadata=registry.metadata
    )
    return [part async for part in call]


async def test_an_owner_gets_and_deletes_a_file(registry: Registry, someone: pb.Owner) -> None:
    content = pdfs.unique_pdf("get and delete")
    uploaded = await registry.upload(content, someone)
    request = pb.GetFileRequest(owner=someone, file_id=uploaded.file.file_id)

    assert (await registry.call("GetFile", request)).file == uploaded.file
    delete = pb.DeleteFileRequest(owner=someone, file_id=uploaded.file.file_id)
    await registry.call("DeleteFile", delete)

    assert await counts(registry, content) == (0, 0, 0)
    for rpc, gone in (("GetFile", request), ("DeleteFile", delete)):
        with refused() as told:
            await registry.call(rpc, gone)
        assert (told.code, told.reason) == ("NOT_FOUND", "FILE_NOT_FOUND")


async def test_a_document_that_was_deleted_can_be_uploaded_again(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("comes back")
    first = await registry.upload(content, someone)
    request = pb.DeleteFileRequest(owner=someone, file_id=first.file.file_id)
    await registry.call("DeleteFile", request)

    second = await registry.upload(content, someone)

    assert second.note == pb.UPLOAD_NOTE_CREATED
    assert second.document.reference_count == 1


async def test_a_file_deleted_twice_at_once_is_deleted_once(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content = pdfs.unique_pdf("deleted twice")
    await registry.upload(content, another)
    file_id = (await registry.upload(content, someone)).file.file_id

    request = pb.DeleteFileRequest(owner=someone, file_id=file_id)
    async with registry.document_locked(hash_of(content)) as until_waiting:
        calls = [asyncio.ensure_future(registry.call("DeleteFile", request)) for _ in range(5)]
        await until_waiting(len(calls))
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert [isinstance(answer, Exception) for answer in answers].count(False) == 1
    assert await counts(registry, content) == (1, 1, 1)


async def test_a_stranger_learns_nothing_from_a_file_id_or_a_hash(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content = pdfs.unique_pdf("private")
    file_id = (await registry.upload(content, someone)).file.file_id
    unknown_id, unknown_hash = str(uuid4()), "f" * 64
    told_of = []
    for held_id, held_hash in ((file_id, hash_of(content)), (unknown_id, unknown_hash)):
        requests = (
            ("GetFile", pb.GetFileRequest(owner=another, file_id=held_id)),
            ("DeleteFile", pb.DeleteFileRequest(owner=another, file_id=held_id)),
            ("ResolvePage", pb.ResolvePageRequest(owner=another, file_id=held_id, page=99)),
            ("ResolvePage", pb.ResolvePageRequest(owner=another, pdf_hash=held_hash, page=99)),
        )
        for rpc, request in requests:
            with refused() as told:
                await registry.call(rpc, request)
            told_of.append((told.code, told.reason, told.message))

    assert set(told_of) == {("NOT_FOUND", "FILE_NOT_FOUND", "no such file")}
    assert await counts(registry, content) == (1, 1, 1)


async def test_possession_ends_with_the_last_file(registry: Registry, someone: pb.Owner) -> None:
    content = pdfs.unique_pdf("possession")
    request = pb.ResolvePageRequest(owner=someone, pdf_hash=hash_of(content), page=1)
    files = [await registry.upload(content, someone, force=force) for force in (False, True)]

    for uploaded in files:
        assert (await registry.call("ResolvePage", request)).total_pages == 1
        delete = pb.DeleteFileRequest(owner=someone, file_id=uploaded.file.file_id)
        await registry.call("DeleteFile", delete)

    with refused() as told:
        await registry.call("ResolvePage", request)
    assert told.reason == "FILE_NOT_FOUND"


async def test_a_page_is_resolved_by_file_and_by_hash_alike(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.text_pdf("Heaps keep the smallest element on top.", "Page two.")
    file_id = (await registry.upload(content, someone)).file.file_id

    by_file = await registry.call(
        "ResolvePage", pb.ResolvePageRequest(owner=someone, file_id=file_id, page=1)
    )
    by_hash = await registry.call(
        "ResolvePage", pb.ResolvePageRequest(owner=someone, pdf_hash=hash_of(content), page=1)
    )

    assert by_file == by_hash
    assert (by_file.pdf_hash, by_file.page, by_file.total_pages) == (hash_of(content), 1, 2)
    assert by_file.effective_mode == pb.EFFECTIVE_MODE_TEXT_ONLY
    assert (by_file.word_count, by_file.images_count, by_file.is_scanned) == (7, 0, False)
    assert by_file.fingerprint.startswith("3:")


async def context_of(registry: Registry, owner: pb.Owner, content: bytes, page: int, n: int) -> str:
    await registry.upload(content, owner)
    request = pb.ResolvePageRequest(owner=owner, pdf_hash=hash_of(content), page=page, neighbours=n)
    answer: pb.ResolvePageResponse = await registry.call("ResolvePage", request)
    return answer.context_fingerprint


async def test_a_context_is_its_pages_in_order_and_the_ends_of_the_document(
    registry: Registry, someone: pb.Owner
) -> None:
    async def context(*pages: str, page: int = 2, n: int = 1) -> str:
        return await context_of(registry, someone, pdfs.text_pdf(*pages), page, n)

    original = await context("before", "the page", "after")
    assert await context("another start", "before", "the page", "after", page=3) == original
    changed = [
        await context("poison", "the page", "after"),
        await context("before", "the page", "poison"),
        await context("before", "the page"),
        await context("the page", "after", page=1),
        await context("after", "the page", "before"),
        await context("before", "the page", "after", n=0),
        await context("before", "the page", "after", n=2),
    ]
    assert len({original, *changed}) == 1 + len(changed)


async def test_the_pages_of_a_context_are_looked_at_in_one_task(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("one task", pages=5)
    tasks = metrics.pdf_tasks.labels("describe", "done")
    before = tasks._value.get()

    answers = await asyncio.gather(
        *(context_of(registry, someone, content, 3, 1) for _ in range(10))
    )

    assert len(set(answers)) == 1
    assert answers[0].startswith("1:")
    assert tasks._value.get() == before + 1
    assert len(await registry.rows(PAGE_ROWS, hash_of(content))) == 3


async def test_a_neighbour_that_cannot_be_read_leaves_the_page_without_a_context(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.joined(pdfs.text_pdf("readable"), pdfs.endless_pdf(), pdfs.text_pdf("far away"))
    await registry.upload(content, someone)
    request = pb.ResolvePageRequest(owner=someone, pdf_hash=hash_of(content), page=1, neighbours=1)
    for _ in range(2):  # found out, and from memory
        answer = await registry.call("ResolvePage", request)
        assert (answer.word_count, answer.context_fingerprint) == (1, "")
    request.page = 2
    with refused() as told:
        await registry.call("ResolvePage", request)
    assert told.reason == "PDF_TIMEOUT"


@pytest.mark.parametrize("neighbours", [-1, 3])
async def test_too_many_neighbours_are_refused(
    registry: Registry, someone: pb.Owner, neighbours: int
) -> None:
    with refused() as told:
        await context_of(registry, someone, pdfs.unique_pdf("neighbours"), 1, neighbours)
    assert (told.code, told.field) == ("INVALID_ARGUMENT", "neighbours")


async def test_a_page_with_a_picture_is_explained_with_images(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.picture_pdf("Look", pdfs.picture(11), pdfs.picture(12))
    file_id = (await registry.upload(content, someone)).file.file_id
    request = pb.ResolvePageRequest(owner=someone, file_id=file_id, page=1)

    answer = await registry.call("ResolvePage", request)

    assert answer.effective_mode == pb.EFFECTIVE_MODE_WITH_IMAGES
    assert answer.images_count == 2


async def test_simultaneous_first_looks_at_a_page_agree(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("first looks")
    file_id = (await registry.upload(content, someone)).file.file_id
    request = pb.ResolvePageRequest(owner=someone, file_id=file_id, page=1)

    answers = await asyncio.gather(*(registry.call("ResolvePage", request) for _ in range(20)))

    assert len({answer.SerializeToString() for answer in answers}) == 1
    assert await registry.rows(PAGE_ROWS, hash_of(content)) == [(None,)]


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"page": 0}, "INVALID_ARGUMENT", "page"),
        ({"page": -1}, "INVALID_ARGUMENT", "page"),
        ({"page": 3}, "PAGE_OUT_OF_RANGE", "page"),
        ({"page": 2_147_483_647}, "PAGE_OUT_OF_RANGE", "page"),
        ({"page": 2_147_483_647, "neighbours": 1}, "PAGE_OUT_OF_RANGE", "page"),
        ({"page": 1, "file_id": "nonsense"}, "INVALID_ARGUMENT", "file_id"),
        ({"page": 1, "pdf_hash": "A" * 64}, "INVALID_ARGUMENT", "pdf_hash"),
    ],
)
async def test_a_wrong_page_or_target_is_refused(
    registry: Registry, someone: pb.Owner, fields: dict[str, Any], reason: str, field: str
) -> None:
    uploaded = await registry.upload(pdfs.text_pdf("one", "two"), someone)
    if not {"file_id", "pdf_hash"} & set(fields):
        fields = fields | {"file_id": uploaded.file.file_id}
    with refused() as told:
        request = pb.ResolvePageRequest(owner=someone, **fields)
        await registry.call("ResolvePage", request)
    assert (told.code, told.reason, told.field) == ("INVALID_ARGUMENT", reason, field)


async def test_a_target_or_an_owner_must_be_named(registry: Registry, someone: pb.Owner) -> None:
    for request, field in (
        (pb.ResolvePageRequest(owner=someone, page=1), "target"),
        (pb.ResolvePageRequest(file_id=str(uuid4()), page=1), "owner"),
    ):
        with refused() as told:
            await registry.call("ResolvePage", request)
        assert (told.code, told.field) == ("INVALID_ARGUMENT", field)


async def test_a_hopeless_page_is_tried_once(registry: Registry, someone: pb.Owner) -> None:
    content = pdfs.endless_pdf()
    file_id = (await registry.upload(content, someone)).file.file_id
    request = pb.ResolvePageRequest(owner=someone, file_id=file_id, page=1)
    with refused() as told:
        await registry.call("ResolvePage", request)
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", "PDF_TIMEOUT")
    assert await registry.rows(PAGE_ROWS, hash_of(content)) == [("PDF_TIMEOUT",)]

    # Without its bytes nobody can try again: the answer must come from memory.
    stored = Path(registry.config.store_url) / hash_of(content)[:2] / f"{hash_of(content)}.pdf"
    stored.unlink()
    with refused() as again:
        await registry.call("ResolvePage", request)
    assert again.reason == "PDF_TIMEOUT"
    with refused() as content_told:
        await content_of(registry.as_service("worker"), pdf_hash=hash_of(content), page=1)
    assert content_told.reason == "PDF_TIMEOUT"


async def test_lost_bytes_are_our_trouble_and_not_remembered_as_the_pages(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("lost bytes")
    file_id = (await registry.upload(content, someone)).file.file_id
    stored = Path(registry.config.store_url) / hash_of(content)[:2] / f"{hash_of(content)}.pdf"
    stored.unlink()
    request = pb.ResolvePageRequest(owner=someone, file_id=file_id, page=1)
    with refused() as told:
        await registry.call("ResolvePage", request)
    assert (told.code, told.reason) == ("UNAVAILABLE", "OBJECT_STORE_UNAVAILABLE")

    await registry.upload(content, someone)  # brings the bytes back
    assert (await registry.call("ResolvePage", request)).total_pages == 1


async def test_a_worker_gets_text_first_then_neighbours_images_and_picture(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.picture_pdf("Look at this", pdfs.picture(21), pdfs.picture(21))
    await registry.upload(content, someone)
    parts = await content_of(
        registry.as_service("worker"),
        pdf_hash=hash_of(content),
        page=1,
        neighbours=2,
        include_images=True,
        include_render=True,
    )
    assert [part.WhichOneof("part") for part in parts] == ["text", "image", "render_png"]
    assert parts[0].text == pb.PageText(page=1, text="Look at this", total_pages=1)
    assert parts[1].image.media_type == "image/png"
    assert (parts[1].image.width_pixels, parts[1].image.height_pixels) == (40, 30)
    assert parts[2].render_png.startswith(b"\x89PNG")


async def test_neighbours_are_the_pages_around_that_exist(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.text_pdf("first", "second", "third", "fourth")
    await registry.upload(content, someone)
    parts = await content_of(
        registry.as_service("worker"), pdf_hash=hash_of(content), page=2, neighbours=2
    )
    around = [(part.neighbour.page, part.neighbour.text) for part in parts[1:]]
    assert around == [(1, "first"), (3, "third"), (4, "fourth")]


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"pdf_hash": "e" * 64, "page": 1}, "NOT_FOUND", "DOCUMENT_NOT_FOUND"),
        ({"pdf_hash": "nope", "page": 1}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        ({"pdf_hash": "e" * 64, "page": 0}, "INVALID_ARGUMENT", "INVALID_ARGUMENT"),
        (
            {"pdf_hash": "e" * 64, "page": 1, "neighbours": 3},
            "INVALID_ARGUMENT",
            "INVALID_ARGUMENT",
        ),
    ],
)
async def test_a_wrong_question_about_content_is_refused(
    registry: Registry, fields: dict[str, Any], code: str, reason: str
) -> None:
    with refused() as told:
        await content_of(registry.as_service("worker"), **fields)
    assert (told.code, told.reason) == (code, reason)


async def test_a_user_token_acts_for_its_own_user_only(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    caller = registry.as_user(someone.user_id)
    visitor = pb.Owner(visitor_session_id=someone.user_id)
    for owner in (another, visitor):
        for rpc, request in (
            ("GetFile", pb.GetFileRequest(owner=owner, file_id=str(uuid4()))),
            ("DeleteFile", pb.DeleteFileRequest(owner=owner, file_id=str(uuid4()))),
            ("ResolvePage", pb.ResolvePageRequest(owner=owner, pdf_hash="a" * 64, page=1)),
        ):
            with refused() as told:
                await caller.call(rpc, request)
            assert (told.code, told.reason) == ("PERMISSION_DENIED", "NOT_YOUR_USER")
        with refused() as told:
            await caller.upload(pdfs.unique_pdf("not mine"), owner)
        assert (told.code, told.reason) == ("PERMISSION_DENIED", "NOT_YOUR_USER")


async def test_content_is_for_workers_and_uploads_are_not(
    registry: Registry, someone: pb.Owner
) -> None:
    for scope in ("gateway", "cache"):
        with refused() as told:
            await content_of(registry.as_service(scope), pdf_hash="a" * 64, page=1)
        assert told.code == "PERMISSION_DENIED"
    with refused() as told:
        await content_of(registry.as_user(someone.user_id), pdf_hash="a" * 64, page=1)
    assert told.code == "PERMISSION_DENIED"
    with refused() as told:
        await registry.as_service("worker").upload(pdfs.unique_pdf("worker"), someone)
    assert told.code == "PERMISSION_DENIED"


async def test_without_a_token_nothing_is_told(served: Registry, someone: pb.Owner) -> None:
    with refused() as told:
        await served.call("GetFile", pb.GetFileRequest(owner=someone, file_id=str(uuid4())))
    assert told.code == "UNAUTHENTICATED"


async def test_a_page_that_no_reader_finds_time_for_is_not_called_unreadable(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    someone: pb.Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = pdfs.unique_pdf("read later")
    async with replica(databases, keys, tmp_path) as registry:
        await registry.upload(content, someone)
        first = await content_of(registry.as_service("worker"), pdf_hash=hash_of(content), page=1)
    program = PROGRAM + "    time.sleep(3600)"  # a machine too busy to read anything
    monkeypatch.setattr(sandbox, "command", lambda _: (sys.executable, "-c", program))
    async with replica(databases, keys, tmp_path, pdf_wall_seconds=3.0) as registry:
        with refused() as told:
            await content_of(registry.as_service("worker"), pdf_hash=hash_of(content), page=1)
        monkeypatch.undo()
        again = await content_of(registry.as_service("worker"), pdf_hash=hash_of(content), page=1)

    assert (told.code, told.reason) == ("UNAVAILABLE", "PDF_READER_UNAVAILABLE")
    assert again == first
