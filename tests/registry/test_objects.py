"""Bytes come back as they went in, from a folder and from a bucket, and trouble has a name."""

import asyncio
import os
import stat
import sys
import tempfile
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from services.registry import folder
from services.registry.objects import BucketObjects, FolderObjects, Objects, key, open_objects
from services.runtime.errors import DependencyDown
from services.runtime.server import CannotStart

HASH = "ab" * 32


async def put(objects: Objects, pdf_hash: str, content: bytes) -> None:
    with tempfile.TemporaryFile() as source:
        source.write(content)
        source.flush()
        await objects.put(pdf_hash, source, size_bytes=len(content))


async def read(objects: Objects, pdf_hash: str) -> bytes:
    async with objects.opened(pdf_hash) as descriptor:
        return os.pread(descriptor, 1 << 26, 0)


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("url", ["file", "path", "memory"])
async def test_bytes_come_back_as_they_went_in(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "objects with space"
    urls = {"file": folder.as_uri(), "path": str(folder), "memory": "memory:///"}
    content = os.urandom(12 << 20)
    async with open_objects(urls[url], spool_dir=tmp_path) as objects:
        await put(objects, HASH, content)
        await put(objects, HASH, content)
        assert await read(objects, HASH) == content
        assert await read(objects, HASH) == content


async def test_a_folder_made_for_documents_is_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    async with open_objects(str(folder), spool_dir=tmp_path):
        mode = await asyncio.to_thread(lambda: folder.stat().st_mode)
    assert stat.S_IMODE(mode) == 0o700


async def test_half_a_file_is_replaced_by_the_whole(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    await put(objects, HASH, b"half")
    await put(objects, HASH, b"half and the rest")
    assert await read(objects, HASH) == b"half and the rest"


async def test_missing_bytes_are_the_stores_trouble(tmp_path: Path) -> None:
    for objects in (FolderObjects(tmp_path), BucketObjects(MemoryStore(), copies=tmp_path)):
        with pytest.raises(DependencyDown) as trouble:
            await read(objects, HASH)
        assert trouble.value.reason == "OBJECT_STORE_UNAVAILABLE"
    assert files_in(tmp_path) == []


async def test_a_bucket_is_asked_once_and_copies_are_few_and_removed(tmp_path: Path) -> None:
    store = MemoryStore()
    objects = BucketObjects(store, copies=tmp_path, kept=2)
    hashes = [digit * 64 for digit in "abc"]
    for pdf_hash in hashes:
        await put(objects, pdf_hash, pdf_hash.encode())
    await asyncio.gather(*(read(objects, hashes[0]) for _ in range(5)))
    assert len(files_in(tmp_path)) == 1

    await obstore.delete_async(store, key(hashes[0]))
    assert await read(objects, hashes[0]) == hashes[0].encode()

    async with objects.opened(hashes[0]) as descriptor:
        for pdf_hash in hashes[1:]:
            await read(objects, pdf_hash)
        # Its copy has been dropped to make room, but a reader keeps what it has opened.
        assert os.pread(descriptor, 100, 0) == hashes[0].encode()
    assert len(files_in(tmp_path)) == 2


def copies_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


COPYING = """
import asyncio, sys
from pathlib import Path
from services.registry.objects import open_objects
from tests.registry.test_objects import HASH, put, read

async def main():
    async with open_objects("memory:///", spool_dir=Path(sys.argv[1])) as objects:
        await put(objects, HASH, b"copied")
        await read(objects, HASH)
        print("copied", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_copies_of_who_was_killed_are_removed_and_those_of_who_lives_are_not(
    tmp_path: Path,
) -> None:
    async def copying() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", COPYING, str(tmp_path)), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"copied\n"
        return process

    killed, living = await copying(), await copying()
    try:
        assert len(copies_in(tmp_path)) == 2
        killed.kill()
        await killed.communicate()
        async with open_objects("memory:///", spool_dir=tmp_path) as objects:
            assert len(copies_in(tmp_path)) == 1
            await put(objects, HASH, b"copied here")
            assert await read(objects, HASH) == b"copied here"
            assert len(copies_in(tmp_path)) == 2
        assert len(copies_in(tmp_path)) == 1
    finally:
        living.kill()
        await living.communicate()


@pytest.mark.parametrize("url", ["ftp://host/x", "http://host/x", "s3://", "nonsense://"])
async def test_a_store_that_cannot_be_used_is_said_in_one_sentence(
    url: str, tmp_path: Path
) -> None:
    with pytest.raises(CannotStart, match="GLOSSA_STORE_URL"):
        async with open_objects(url, spool_dir=tmp_path):
            pass


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="this system has no files without a name")
async def test_spooled_bytes_are_published_without_being_copied(tmp_path: Path) -> None:
    objects = FolderObjects(tmp_path)
    with folder.spool_file(tmp_path) as spool:
        spool.write(b"once")
        await objects.put(HASH, spool, size_bytes=4)
        spooled = os.fstat(spool.fileno()).st_ino
    assert await asyncio.to_thread(os.stat, tmp_path / key(HASH)) is not None
    async with objects.opened(HASH) as descriptor:
        assert os.fstat(descriptor).st_ino == spooled
        assert stat.S_IMODE(os.fstat(descriptor).st_mode) == 0o600
    assert [path.name for path in (tmp_path / HASH[:2]).iterdir()] == [f"{HASH}.pdf"]


async def test_bytes_from_another_file_system_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    objects = FolderObjects(tmp_path)
    await put(objects, HASH, b"content")
    assert await read(objects, HASH) == b"content"
    assert [path.name for path in (tmp_path / HASH[:2]).iterdir()] == [f"{HASH}.pdf"]
