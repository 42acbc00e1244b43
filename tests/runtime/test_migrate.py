"""Migrations: applied once whoever races, in order, whole or not at all, never edited."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from services.local.postgres import EmbeddedPostgres
from services.runtime.errors import DependencyDown
from services.runtime.migrate import (
    MigrationChanged,
    MigrationError,
    MigrationFailed,
    MigrationFolderInvalid,
    migrate,
    read_migrations,
)


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[EmbeddedPostgres]:
    folder = Path(tempfile.mkdtemp(prefix="glossa-test-"))
    async with EmbeddedPostgres(folder, options={"fsync": "off"}) as postgres:
        yield postgres
    shutil.rmtree(folder)


@pytest.fixture
async def url(server: EmbeddedPostgres) -> str:
    name = f"test_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(server.url)
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    connection = await asyncpg.connect(server.url_of(name))
    await connection.execute("CREATE SCHEMA notes")
    await connection.close()
    return server.url_of(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "0001_create_note", "CREATE TABLE notes.notes (note text);")
    write(tmp_path, "0002_add_author", "ALTER TABLE notes.notes ADD COLUMN author text;")
    return tmp_path


def write(folder: Path, name: str, sql: str) -> None:
    (folder / f"{name}.sql").write_text(sql)


async def ask(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_missing_files_are_applied_in_order_and_once(url: str, folder: Path) -> None:
    assert await migrate(url, schema="notes", folder=folder) == [
        "0001_create_note",
        "0002_add_author",
    ]
    write(folder, "0003_drop_author", "ALTER TABLE notes.notes DROP COLUMN author;")

    assert await migrate(url, schema="notes", folder=folder) == ["0003_drop_author"]
    assert await migrate(url, schema="notes", folder=folder) == []


async def test_four_racing_runners_apply_each_file_once(url: str, folder: Path) -> None:
    write(folder, "0003_add_row", "INSERT INTO notes.notes VALUES ('once'); SELECT pg_sleep(0.1);")

    runs = await asyncio.gather(*(migrate(url, schema="notes", folder=folder) for _ in range(4)))

    assert sorted(len(applied) for applied in runs) == [0, 0, 0, 3]
    assert await ask(url, "SELECT count(*) FROM notes.notes") == 1


async def test_an_edited_file_is_refused_before_anything_runs(url: str, folder: Path) -> None:
    await migrate(url, schema="notes", folder=folder)
    write(folder, "0001_create_note", "CREATE TABLE notes.notes (note text, extra int);")
    write(folder, "0003_create_more", "CREATE TABLE notes.more (x int);")

    with pytest.raises(MigrationChanged, match=r"notes/0001_create_note\.sql was edited"):
        await migrate(url, schema="notes", folder=folder)

    assert await ask(url, "SELECT to_regclass('notes.more')") is None


async def test_a_failing_file_leaves_nothing_behind_and_can_be_repaired(
    url: str, folder: Path
) -> None:
    write(folder, "0003_create_more", "CREATE TABLE notes.more (x int); SELECT 1 / 0;")
    with pytest.raises(MigrationFailed, match=r"notes/0003_create_more\.sql: division by zero"):
        await migrate(url, schema="notes", folder=folder)
    assert await ask(url, "SELECT to_regclass('notes.more')") is None

    write(folder, "0003_create_more", "CREATE TABLE notes.more (x int);")

    assert await migrate(url, schema="notes", folder=folder) == ["0003_create_more"]


async def test_a_file_and_its_record_are_written_together_or_not_at_all(
    url: str, folder: Path
) -> None:
    forged = "INSERT INTO notes.schema_migrations VALUES (3, 'forged', 'forged');"
    write(folder, "0003_create_more", f"CREATE TABLE notes.more (x int); {forged}")

    with pytest.raises(MigrationFailed, match="duplicate key"):
        await migrate(url, schema="notes", folder=folder)

    assert await ask(url, "SELECT to_regclass('notes.more')") is None


async def test_a_database_that_is_ahead_is_left_alone(url: str, folder: Path) -> None:
    await migrate(url, schema="notes", folder=folder)
    (folder / "0002_add_author.sql").unlink()

    assert await migrate(url, schema="notes", folder=folder) == []


async def test_line_ends_do_not_count_as_an_edit(url: str, folder: Path) -> None:
    write(folder, "0003_create_more", "CREATE TABLE notes.more (\n x int\n);\n")
    await migrate(url, schema="notes", folder=folder)
    (folder / "0003_create_more.sql").write_bytes(b"CREATE TABLE notes.more (\r\n x int\r\n);\r\n")

    assert await migrate(url, schema="notes", folder=folder) == []


async def test_the_time_outs_of_a_role_do_not_cut_a_migration(url: str, folder: Path) -> None:
    name = url.rpartition("/")[2]
    await ask(url, f"ALTER DATABASE {name} SET statement_timeout = '50ms'")
    write(folder, "0003_wait_long", "SELECT pg_sleep(0.2);")

    assert "0003_wait_long" in await migrate(url, schema="notes", folder=folder)


@pytest.mark.parametrize(
    "names",
    [
        ["0001_create_note", "0003_add_author"],
        ["0002_create_note"],
        ["0001_create_note", "0001_create_more"],
        ["1_create_note"],
        ["0001-create-note"],
    ],
)
def test_gaps_doubles_and_odd_names_are_refused(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        write(tmp_path, name, "SELECT 1;")

    with pytest.raises(MigrationFolderInvalid):
        read_migrations(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MigrationFolderInvalid, match="there is no folder"):
        read_migrations(tmp_path / "nowhere")


async def test_a_schema_name_is_never_taken_as_sql(url: str, folder: Path) -> None:
    with pytest.raises(MigrationError, match="not a schema name"):
        await migrate(url, schema="notes; DROP SCHEMA notes", folder=folder)


async def test_an_unreachable_database_is_a_dependency_that_is_down(folder: Path) -> None:
    with pytest.raises(DependencyDown, match="connection refused") as caught:
        await migrate("postgresql://u:sesame@127.0.0.1:1/x", schema="notes", folder=folder)

    assert caught.value.reason == "DATABASE_UNAVAILABLE"
    assert "sesame" not in caught.value.message
