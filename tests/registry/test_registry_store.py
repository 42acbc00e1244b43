"""The hot statements use their indexes, and the database itself refuses what must not be."""

from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import pytest

from services.registry import (
    backfill_store,
    callback_store,
    garbage_store,
    page_store,
    process_store,
    store,
)
from services.registry.files import BEGINNING
from services.registry.page_identity import FINGERPRINT_VERSION

HASH = "a" * 64
ADD_DOCUMENT = """
INSERT INTO registry.canonical_documents (pdf_hash, size_bytes, total_pages) VALUES ($1, 10, 1)
"""
CROWD = """
INSERT INTO registry.files (file_id, user_id, content_hash, filename, size_bytes)
SELECT gen_random_uuid(), 'user-' || number, $1, 'x.pdf', 10 FROM generate_series(1, 5000) AS number
"""
CALLBACKS = """
INSERT INTO registry.callbacks (callback_id, file_id, url, state, ended_at)
SELECT gen_random_uuid(), file_id, 'https://example.org/', 'delivered', now() FROM registry.files
"""
LIBRARY = """
INSERT INTO registry.canonical_documents
    (pdf_hash, size_bytes, total_pages, reference_count, unreferenced_at, processed_at)
SELECT md5(number::text) || md5('x' || number), 10, 1, 1, NULL, now()
FROM generate_series(1, 5000) AS number
"""

ADD_PAGE = """
INSERT INTO registry.canonical_page_metadata
    (pdf_hash, page, word_count, images_count, is_scanned, has_hidden_text, fingerprint)
VALUES ($1, $2, 1, 0, FALSE, FALSE, $3 || ':' || $1)
"""
ADD_BROKEN_PAGE = """
INSERT INTO registry.canonical_page_metadata (pdf_hash, page, error_reason)
VALUES ($1, 3, 'PDF_TIMEOUT')
"""
RENEWAL = Path(store.__file__).parent / "migrations" / "0009_renew_fingerprints.sql"


@pytest.fixture
async def connection(databases: Mapping[str, str]) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(databases["registry"])
    await connection.execute(ADD_DOCUMENT, HASH)
    yield connection
    await connection.close()


async def plan(connection: asyncpg.Connection, statement: str, *values: object) -> str:
    rows = await connection.fetch("EXPLAIN " + statement, *values)
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize(
    ("statement", "values", "index"),
    [
        (store.FIND_HELD, (HASH, "user-77", None, 1), "_of_user_idx"),
        (page_store.RESOLVE_HASH, (HASH, "user-77", None, [1]), "_of_user_idx"),
        (store.LIST_FILES, ("user-77", None, *BEGINNING, 9), "file_by_age_of_user_idx"),
        (store.REMOVE_FILES, ([uuid4()], "user-77", None, [HASH]), "_of_user_idx"),
        (backfill_store.LIST_UNHASHED, (False, UUID(int=0), 9), "file_without_hash_idx"),
        (callback_store.RIPEN_CALLBACKS, (), "callback_waiting_idx"),
    ],
)
async def test_a_file_among_thousands_is_found_by_index(
    connection: asyncpg.Connection, statement: str, values: tuple[object, ...], index: str
) -> None:
    await connection.execute(CROWD, HASH)
    await connection.execute(CALLBACKS)
    await connection.execute("ANALYZE")

    chosen = await plan(connection, statement, *values)

    assert index in chosen
    assert "Seq Scan on files" not in chosen


@pytest.mark.parametrize(
    ("statement", "values", "index"),
    [
        (process_store.CLAIM_DOCUMENT, (timedelta(minutes=1),), "document_unprocessed_idx"),
        (garbage_store.LIST_GARBAGE, (timedelta(hours=1), "", 9), "document_unreferenced_idx"),
    ],
)
async def test_a_document_among_thousands_is_found_by_index(
    connection: asyncpg.Connection, statement: str, values: tuple[object, ...], index: str
) -> None:
    await connection.execute(LIBRARY)
    await connection.execute("ANALYZE")

    assert index in await plan(connection, statement, *values)


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        (
            "UPDATE registry.canonical_documents SET reference_count = -1, unreferenced_at = NULL",
            "document_reference_count_is_never_negative",
        ),
        (
            "UPDATE registry.canonical_documents SET reference_count = 1",
            "document_is_unreferenced_or_counted",
        ),
        (
            "UPDATE registry.canonical_documents SET pdf_hash = 'A' || substr(pdf_hash, 2)",
            "document_hash_is_sha256",
        ),
        (
            "INSERT INTO registry.files (file_id, content_hash, filename, size_bytes)"
            " SELECT gen_random_uuid(), pdf_hash, 'x', 1 FROM registry.canonical_documents",
            "file_has_one_owner",
        ),
        (
            "INSERT INTO registry.canonical_page_metadata (pdf_hash, page, error_reason)"
            " SELECT pdf_hash, 0, 'PDF_TIMEOUT' FROM registry.canonical_documents",
            "page_is_counted_from_one",
        ),
        (
            "INSERT INTO registry.canonical_page_metadata (pdf_hash, page, word_count)"
            " SELECT pdf_hash, 1, 5 FROM registry.canonical_documents",
            "page_is_known_or_broken",
        ),
    ],
)
async def test_the_database_refuses_what_must_not_be(
    connection: asyncpg.Connection, statement: str, constraint: str
) -> None:
    with pytest.raises(asyncpg.CheckViolationError) as refused:
        await connection.execute(statement)
    assert refused.value.constraint_name == constraint


@pytest.mark.parametrize("owner", [("u", None), (None, "v")])
async def test_the_database_keeps_one_unforced_file_per_owner(
    connection: asyncpg.Connection, owner: tuple[str | None, str | None]
) -> None:
    async def add(*, forced: bool) -> object:
        return await connection.fetchval(store.ADD_FILE, uuid4(), *owner, HASH, "x.pdf", 10, forced)

    assert await add(forced=False) is not None
    assert await add(forced=False) is None
    assert await add(forced=True) is not None
    assert await add(forced=True) is not None


async def test_pages_with_fingerprints_of_an_older_version_are_forgotten(
    connection: asyncpg.Connection,
) -> None:
    """Whoever raises the version adds such a migration, and names it here."""
    await connection.execute(ADD_PAGE, HASH, 1, "2")
    await connection.execute(ADD_PAGE, HASH, 2, FINGERPRINT_VERSION)
    await connection.execute(ADD_BROKEN_PAGE, HASH)

    await connection.execute(RENEWAL.read_text())

    left = await connection.fetch("SELECT page FROM registry.canonical_page_metadata ORDER BY page")
    assert [row["page"] for row in left] == [2, 3]
