"""Files known without a hash become files like all others: in batches, on first use, once."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from glossa.registry.v1 import registry_pb2 as pb

from services.registry import backfill, sandbox
from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.refusals import refused
from tests.registry.replicas import check_health, collect, replica
from tests.registry.test_taken_over import PROGRAM
from tests.registry.test_upload import counts, hash_of, stored
from tests.suite import Keys

ADD_UNHASHED = """
INSERT INTO registry.files (file_id, user_id, filename, source_key)
VALUES ($1, $2, 'old.pdf', $3)
"""


@pytest.fixture
async def own(databases: Mapping[str, str], keys: Keys, tmp_path: Path) -> AsyncIterator[Registry]:
    """A Registry with no files but those of its test."""
    async with replica(databases, keys, tmp_path) as registry:
        yield registry


async def take_over(
    registry: Registry, owner: pb.Owner, content: bytes | None, key: str = ""
) -> str:
    """A file as another system would have left it."""
    file_id = uuid4()
    key = key or f"old/{file_id}.pdf"
    if content is not None:
        path = Path(registry.config.store_url) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    await registry.rows(ADD_UNHASHED, file_id, owner.user_id, key)
    return str(file_id)


async def run(registry: Registry, **request: Any) -> list[pb.BackfillContentHashesResponse]:
    admin = registry.as_service("admin")
    call = admin.stub.BackfillContentHashes(
        pb.BackfillContentHashesRequest(**request), metadata=admin.metadata
    )
    return [progress async for progress in call]


def figures(progress: pb.BackfillContentHashesResponse) -> tuple[int, int, int, int]:
    return progress.total, progress.hashed, progress.failed, progress.skipped


async def test_files_are_hashed_in_batches_with_progress(
    own: Registry, someone: pb.Owner, another: pb.Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "BATCH", 2)
    contents = [pdfs.unique_pdf(f"backfilled {number}") for number in range(4)]
    files = [await take_over(own, someone, content) for content in contents]
    await take_over(own, another, contents[0])

    told = await run(own)

    assert [figures(progress) for progress in told] == [
        (5, 0, 0, 0),
        (5, 2, 0, 0),
        (5, 4, 0, 0),
        (5, 5, 0, 0),
    ]
    assert [await counts(own, content) for content in contents] == [(2, 2, 2)] + [(1, 1, 1)] * 3
    answer = await own.call("GetFile", pb.GetFileRequest(owner=someone, file_id=files[1]))
    assert answer.file.pdf_hash == hash_of(contents[1])
    assert answer.file.size_bytes == len(contents[1])
    assert stored(own, contents[1]).read_bytes() == contents[1]
    assert figures((await run(own))[-1]) == (0, 0, 0, 0)


async def test_what_cannot_be_hashed_is_remembered_and_tried_again_on_request(
    own: Registry, someone: pb.Owner
) -> None:
    missing = await take_over(own, someone, None, key="old/comes-later.pdf")
    await take_over(own, someone, b"no pdf at all")
    outside = await take_over(own, someone, None, key="../../etc/passwd")
    good = pdfs.unique_pdf("good among bad")
    await take_over(own, someone, good)

    assert figures((await run(own))[-1]) == (4, 1, 3, 0)
    assert figures((await run(own))[-1]) == (0, 0, 0, 0)
    reasons = await own.rows(
        "SELECT file_id, hash_error FROM registry.files WHERE content_hash IS NULL"
    )
    assert dict(reasons)[UUID(missing)] == dict(reasons)[UUID(outside)] == "SOURCE_MISSING"
    assert sorted(reason for _, reason in reasons)[0] == "NOT_A_PDF"

    (Path(own.config.store_url) / "old/comes-later.pdf").write_bytes(pdfs.unique_pdf("came"))
    assert figures((await run(own, retry_failed=True))[-1]) == (3, 1, 2, 0)


async def test_a_file_is_hashed_on_first_use_by_everybody_at_once_once(
    own: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content = pdfs.unique_pdf("first use")
    file_id = await take_over(own, someone, content)
    listed = await own.call("ListFiles", pb.ListFilesRequest(owner=someone))
    assert [(file.file_id, file.pdf_hash) for file in listed.files] == [(file_id, "")]
    with refused() as told:
        await own.call("GetFile", pb.GetFileRequest(owner=another, file_id=file_id))
    assert told.reason == "FILE_NOT_FOUND"

    resolve = pb.ResolvePageRequest(owner=someone, file_id=file_id, page=1)
    answers = await asyncio.gather(*(own.call("ResolvePage", resolve) for _ in range(5)))

    assert {answer.pdf_hash for answer in answers} == {hash_of(content)}
    assert await counts(own, content) == (1, 1, 1)


@pytest.mark.parametrize("rpc", ["GetFile", "ResolvePage", "BatchGetPageMetadata", "AddReference"])
async def test_every_first_use_hashes(own: Registry, someone: pb.Owner, rpc: str) -> None:
    content = pdfs.unique_pdf(f"first use by {rpc}")
    file_id = await take_over(own, someone, content)
    needed: dict[str, dict[str, Any]] = {
        "GetFile": {},
        "ResolvePage": {"page": 1},
        "BatchGetPageMetadata": {"pages": [1]},
        "AddReference": {"ref_type": "lecture", "ref_id": str(uuid4())},
    }
    request = getattr(pb, f"{rpc}Request")(owner=someone, file_id=file_id, **needed[rpc])
    await own.call(rpc, request)
    assert (await own.rows("SELECT content_hash FROM registry.files")) == [(hash_of(content),)]


async def test_a_first_use_of_what_is_no_pdf_says_so(own: Registry, someone: pb.Owner) -> None:
    file_id = await take_over(own, someone, b"still no pdf")
    await run(own)
    with refused() as told:
        await own.call("GetFile", pb.GetFileRequest(owner=someone, file_id=file_id))
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", "NOT_A_PDF")


async def test_a_first_use_of_what_is_not_there_says_so_and_is_not_tried_again(
    own: Registry, someone: pb.Owner
) -> None:
    file_id = await take_over(own, someone, None, key="old/later.pdf")
    folder = await take_over(own, someone, pdfs.unique_pdf("in a folder"), key="old/in/it.pdf")
    await own.rows("UPDATE registry.files SET source_key = 'old/in' WHERE file_id = $1", folder)
    request = pb.GetFileRequest(owner=someone, file_id=file_id)
    for _ in range(2):
        with refused() as told:
            await own.call("GetFile", request)
        assert (told.code, told.reason) == ("NOT_FOUND", "SOURCE_MISSING")
        # Too late for a first use; a backfill that is told to tries again.
        (Path(own.config.store_url) / "old/later.pdf").write_bytes(pdfs.unique_pdf("late"))
    with refused() as told:
        await own.call("GetFile", pb.GetFileRequest(owner=someone, file_id=folder))
    assert told.reason == "SOURCE_MISSING"
    assert figures((await run(own, retry_failed=True))[-1]) == (2, 1, 1, 0)
    assert (await own.call("GetFile", request)).file.pdf_hash


async def test_a_first_use_of_what_is_too_large_says_so_and_reads_it_once(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    async with replica(databases, keys, tmp_path, max_upload_bytes=100) as small:
        file_id = await take_over(small, someone, pdfs.unique_pdf("large"), key="old/large.pdf")
        for _ in range(2):
            with refused() as told:
                await small.call("GetFile", pb.GetFileRequest(owner=someone, file_id=file_id))
            assert (told.code, told.reason) == ("RESOURCE_EXHAUSTED", "FILE_TOO_LARGE")
            (Path(small.config.store_url) / "old/large.pdf").unlink(missing_ok=True)


async def test_trouble_that_passes_is_no_missing_file(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    someone: pb.Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = pdfs.unique_pdf("read later")
    program = PROGRAM + "    time.sleep(3600)"  # a machine too busy to read anything
    monkeypatch.setattr(sandbox, "command", lambda _: (sys.executable, "-c", program))
    async with replica(databases, keys, tmp_path, pdf_wall_seconds=3.0) as registry:
        file_id = await take_over(registry, someone, content)
        request = pb.GetFileRequest(owner=someone, file_id=file_id)
        with refused() as told:
            await registry.call("GetFile", request)
        monkeypatch.undo()
        assert (told.code, told.reason) == ("UNAVAILABLE", "PDF_READER_UNAVAILABLE")
        assert (await registry.call("GetFile", request)).file.pdf_hash == hash_of(content)


async def test_an_owners_twins_are_both_kept(own: Registry, someone: pb.Owner) -> None:
    content = pdfs.unique_pdf("twins")
    uploaded = await own.upload(content, someone)
    files = [await take_over(own, someone, content) for _ in range(2)]
    assert figures((await run(own))[-1]) == (2, 2, 0, 0)
    assert await counts(own, content) == (3, 3, 3)
    again = await own.upload(content, someone)
    assert again.file.file_id == uploaded.file.file_id
    delete = pb.BulkDeleteFilesRequest(owner=someone, file_ids=[*files, uploaded.file.file_id])
    assert len((await own.call("BulkDeleteFiles", delete)).deleted_file_ids) == 3
    assert await counts(own, content) == (0, 0, 0)


async def test_files_without_a_hash_can_be_deleted_and_replaced(
    own: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("instead")
    deleted, replaced = [await take_over(own, someone, None) for _ in range(2)]
    await own.call("DeleteFile", pb.DeleteFileRequest(owner=someone, file_id=deleted))
    await own.upload(content, someone, file_id=replaced, replace=True)
    assert await counts(own, content) == (1, 1, 1)


async def test_two_backfills_and_a_collection_at_once_count_exactly(
    own: Registry, someone: pb.Owner
) -> None:
    contents = [pdfs.unique_pdf(f"contended backfill {number}") for number in range(10)]
    for content in contents:
        await take_over(own, someone, content)
    runs = await asyncio.gather(run(own), run(own), collect(own), collect(own))
    done = [figures(told[-1]) for told in runs[:2]]
    assert sum(one[2] for one in done) == 0
    assert [await counts(own, content) for content in contents] == [(1, 1, 1)] * 10
    assert (await check_health(own)).findings_count == 0


async def test_backfilling_is_for_admins(registry: Registry) -> None:
    with refused() as told:
        await registry.stub.BackfillContentHashes(
            pb.BackfillContentHashesRequest(), metadata=registry.metadata
        ).read()
    assert told.code == "PERMISSION_DENIED"
