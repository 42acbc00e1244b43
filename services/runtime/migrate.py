"""Brings one schema up to date: numbered SQL files, each applied once in its own transaction."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import asyncpg

from services.runtime.database import CONNECT_ERRORS, connection_problem
from services.runtime.errors import DependencyDown

FILE_NAME = re.compile(r"(?P<number>\d{4})_[a-z0-9]+(_[a-z0-9]+)*\.sql")
SCHEMA_NAME = re.compile(r"[a-z][a-z_]{0,62}")
CONNECT_SECONDS = 10.0
WAIT_FOR_OTHERS = timedelta(minutes=5)
POLL_SECONDS = 0.05
LOCK_SPACE = 0x6C05  # the first half of our advisory lock keys; the schema's hash is the second

# A migration may take longer than any request may.
SESSION = {"application_name": "glossa-migrate", "statement_timeout": "0", "lock_timeout": "30s"}

CREATE_HISTORY = """
CREATE TABLE IF NOT EXISTS {schema}.schema_migrations (
    number     integer     PRIMARY KEY,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""
LIST_APPLIED = "SELECT number, checksum FROM {schema}.schema_migrations"
RECORD = "INSERT INTO {schema}.schema_migrations (number, name, checksum) VALUES ($1, $2, $3)"
# Polled: the blocking lock waits with a snapshot, and CREATE INDEX CONCURRENTLY waits for that.
TRY_LOCK = "SELECT pg_try_advisory_lock($1, hashtext($2))"


class MigrationError(Exception):
    """The schema cannot be brought up to date; the message says which file and why."""


class MigrationFolderInvalid(MigrationError):
    """The files are not numbered 0001, 0002, … without gap or double."""


class MigrationChanged(MigrationError):
    """A file was edited after it had been applied here."""


class MigrationFailed(MigrationError):
    """Postgres refused a file; nothing of it was applied."""


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


async def migrate(database_url: str, *, schema: str, folder: Path) -> list[str]:
    """Apply what is missing in `schema` and return the names. Any number of runners may race.

    Migrations that only the database knows are left alone: a newer version may run beside us.
    """
    if not SCHEMA_NAME.fullmatch(schema):
        raise MigrationFolderInvalid(f"{schema!r} is not a schema name")
    migrations = read_migrations(folder)
    async with _connected(database_url) as connection:
        await _wait_for_lock(connection, schema)
        await connection.execute(CREATE_HISTORY.format(schema=schema))
        missing = await _find_missing(connection, schema, migrations)
        for migration in missing:
            await _apply(connection, schema, migration)
    return [migration.name for migration in missing]


def read_migrations(folder: Path) -> list[Migration]:
    """The files of a folder in order; wrong names and numbers are refused."""
    if not folder.is_dir():
        raise MigrationFolderInvalid(f"there is no folder {folder}")
    migrations = [_read(path) for path in sorted(folder.glob("*.sql"))]
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise MigrationFolderInvalid(
                f"{migration.name} stands where number {expected:04} is expected in {folder}"
            )
    return migrations


def _read(path: Path) -> Migration:
    match = FILE_NAME.fullmatch(path.name)
    if match is None:
        raise MigrationFolderInvalid(f"{path} is not named like 0001_create_noun.sql")
    return Migration(number=int(match["number"]), name=path.stem, sql=path.read_text("utf-8"))


@asynccontextmanager
async def _connected(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    try:
        connection = await asyncpg.connect(
            database_url, timeout=CONNECT_SECONDS, server_settings=SESSION
        )
    except CONNECT_ERRORS as error:
        message = f"cannot connect to the database: {connection_problem(error)}"
        raise DependencyDown(message, reason="DATABASE_UNAVAILABLE") from None
    try:
        yield connection
    finally:
        # Closing the session also gives the lock back.
        await connection.close(timeout=CONNECT_SECONDS)


async def _wait_for_lock(connection: asyncpg.Connection, schema: str) -> None:
    try:
        async with asyncio.timeout(WAIT_FOR_OTHERS.total_seconds()):
            while not await connection.fetchval(TRY_LOCK, LOCK_SPACE, schema):  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
    except TimeoutError:
        raise MigrationError(f"another runner has been migrating {schema} for minutes") from None


async def _find_missing(
    connection: asyncpg.Connection, schema: str, migrations: Sequence[Migration]
) -> list[Migration]:
    rows = await connection.fetch(LIST_APPLIED.format(schema=schema))
    applied = {row["number"]: row["checksum"] for row in rows}
    for migration in migrations:
        if applied.get(migration.number, migration.checksum) != migration.checksum:
            raise MigrationChanged(
                f"{schema}/{migration.name}.sql was edited after it was applied: "
                "restore it and write a new migration"
            )
    return [migration for migration in migrations if migration.number not in applied]


async def _apply(connection: asyncpg.Connection, schema: str, migration: Migration) -> None:
    try:
        async with connection.transaction():
            await connection.execute(migration.sql)
            record = RECORD.format(schema=schema)
            await connection.execute(record, migration.number, migration.name, migration.checksum)
    except asyncpg.PostgresError as error:
        raise MigrationFailed(f"{schema}/{migration.name}.sql: {error}") from error
