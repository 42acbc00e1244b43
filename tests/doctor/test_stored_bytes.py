"""Bytes without a document and documents without bytes are found, whoever comes and goes."""

import tempfile
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from services.doctor.stored_bytes import examine_bytes, open_store, round_trip
from services.doctor.verdict import CannotCheck, Check, Status, Unfit
from services.registry.objects import Objects

LIST_HELD = "SELECT pdf_hash FROM registry.canonical_documents ORDER BY pdf_hash"


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    async with AsyncExitStack() as stack:
        (tmp_path / "objects").mkdir()
        yield await open_store(str(tmp_path / "objects"), stack)


async def put(store: Objects, folder: Path, pdf_hash: str, content: bytes) -> None:
    with tempfile.TemporaryFile(dir=folder) as source:
        source.write(content)
        source.flush()
        await store.put(pdf_hash, source, size_bytes=len(content))


@pytest.fixture
async def held(admin: "asyncpg.Connection[Any]", store: Objects, tmp_path: Path) -> list[str]:
    """The documents of the past, with the bytes they should have."""
    hashes = [row["pdf_hash"] for row in await admin.fetch(LIST_HELD)]
    for pdf_hash in hashes:
        await put(store, tmp_path, pdf_hash, b"x" * 1000)
    return hashes


def found(checks: list[Check]) -> dict[str, list[Any]]:
    return {
        check.name: [row["pdf_hash"] for row in check.examples]
        for check in checks
        if check.status is not Status.SOUND
    }


async def test_documents_and_bytes_that_belong_together_are_sound(
    auditor: "asyncpg.Connection[Any]", store: Objects, held: list[str]
) -> None:
    assert found(await examine_bytes(auditor, store)) == {}


async def test_missing_and_truncated_bytes_are_found(
    auditor: "asyncpg.Connection[Any]", store: Objects, held: list[str], tmp_path: Path
) -> None:
    await store.remove(held[0])
    await store.remove(held[1])
    await put(store, tmp_path, held[1], b"x")

    assert found(await examine_bytes(auditor, store)) == {"stored/no_missing_bytes": held[:2]}


async def test_bytes_that_nobody_knows_are_found(
    auditor: "asyncpg.Connection[Any]", store: Objects, held: list[str], tmp_path: Path
) -> None:
    orphan = sha256(b"orphan").hexdigest()
    await put(store, tmp_path, orphan, b"orphan")

    assert found(await examine_bytes(auditor, store)) == {"stored/no_orphan_bytes": [orphan]}


async def test_documents_that_nobody_holds_may_lack_their_bytes(
    admin: "asyncpg.Connection[Any]",
    auditor: "asyncpg.Connection[Any]",
    store: Objects,
    held: list[str],
) -> None:
    await admin.execute(
        "UPDATE registry.canonical_documents SET reference_count = 0, unreferenced_at = now()"
        " WHERE pdf_hash = $1",
        held[0],
    )
    await store.remove(held[0])

    assert found(await examine_bytes(auditor, store)) == {}


class Moving:
    """A store in which something happens right after it was listed."""

    def __init__(self, store: Objects, then: Any) -> None:
        self._store = store
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_objects(self) -> Any:
        async for piece in self._store.list_objects():
            yield piece
        await self._then()


async def test_a_document_that_comes_while_it_looks_is_no_violation(
    admin: "asyncpg.Connection[Any]",
    auditor: "asyncpg.Connection[Any]",
    store: Objects,
    held: list[str],
    tmp_path: Path,
) -> None:
    await store.remove(held[0])

    async def upload() -> None:
        await put(store, tmp_path, held[0], b"x" * 1000)

    assert found(await examine_bytes(auditor, Moving(store, upload))) == {}


async def test_a_document_that_goes_while_it_looks_is_no_violation(
    admin: "asyncpg.Connection[Any]",
    auditor: "asyncpg.Connection[Any]",
    store: Objects,
    held: list[str],
    tmp_path: Path,
) -> None:
    orphan = sha256(b"orphan").hexdigest()
    await put(store, tmp_path, orphan, b"orphan")

    async def collect() -> None:
        await store.remove(orphan)

    assert found(await examine_bytes(auditor, Moving(store, collect))) == {}


async def test_the_round_trip_leaves_nothing_behind(store: Objects, tmp_path: Path) -> None:
    await round_trip(store)

    assert [path for path in (tmp_path / "objects").rglob("*") if path.is_file()] == []


async def test_a_store_that_keeps_something_else_is_told(store: Objects, tmp_path: Path) -> None:
    class Forgetful(Moving):
        async def put(self, pdf_hash: str, source: Any, *, size_bytes: int) -> None:
            await put(self._store, tmp_path, pdf_hash, b"something else")

    with pytest.raises(Unfit, match="is not what was got"):
        await round_trip(Forgetful(store, None))


async def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(CannotCheck, match="there is no folder"):
            await open_store((tmp_path / "nowhere").as_uri(), stack)
    assert not (tmp_path / "nowhere").exists()
