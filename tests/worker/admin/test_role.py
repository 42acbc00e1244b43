"""The role that the pages read with: it cannot write, see elsewhere, or hold anybody up."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from services.local.layout import SERVICES
from services.worker import dashboard_store, dead_letter_store, metrics_store
from tests.worker.admin.seeding import seed_letter

READABLE = {"sticker_metrics", "metric_hours", "dead_letters", "generation_events"}


@pytest.fixture
async def dashboard(dashboard_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(dashboard_url)
    try:
        yield connection
    finally:
        await connection.close()


async def tables(connection: "asyncpg.Connection[Any]", schema: str) -> list[str]:
    rows = await connection.fetch(
        "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = $1", schema
    )
    assert rows
    return [row["tablename"] for row in rows]


async def test_it_reads_what_the_pages_show_and_nothing_else(
    dashboard: "asyncpg.Connection[Any]",
) -> None:
    for schema in SERVICES:
        for table in await tables(dashboard, schema):
            if schema == "worker" and table in READABLE:
                await dashboard.fetch(f"SELECT * FROM {schema}.{table}")
                continue
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await dashboard.fetch(f"SELECT * FROM {schema}.{table}")


async def test_it_cannot_write_even_when_it_wants_to(
    dashboard: "asyncpg.Connection[Any]", superuser: "asyncpg.Connection[Any]"
) -> None:
    await seed_letter(superuser)
    for statement in (
        "DELETE FROM worker.dead_letters",
        "UPDATE worker.dead_letters SET reason = 'x'",
        "TRUNCATE worker.sticker_metrics",
        "CREATE TABLE worker.intruder (id integer)",
    ):
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await dashboard.execute(statement)
        # The setting is a habit, the missing right is the fence.
        async with dashboard.transaction():
            await dashboard.execute("SET TRANSACTION READ WRITE")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                async with dashboard.transaction():
                    await dashboard.execute(statement)

    assert await superuser.fetchval("SELECT count(*) FROM worker.dead_letters") == 1


async def test_its_statements_locks_and_transactions_end_soon(
    dashboard: "asyncpg.Connection[Any]",
) -> None:
    limits = {
        "statement_timeout": "2s",
        "lock_timeout": "500ms",
        "idle_in_transaction_session_timeout": "2s",
        "default_transaction_read_only": "on",
    }
    for name, value in limits.items():
        assert await dashboard.fetchval(f"SHOW {name}") == value
    with pytest.raises(asyncpg.QueryCanceledError):
        await dashboard.execute("SELECT pg_sleep(100)")


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (dashboard_store, ("READ_DAYS", "READ_PARTS", "LIST_REDRIVEN", "LIST_STEPS")),
        (
            metrics_store,
            (
                "READ_DAY",
                "READ_DAY_DOCUMENTS",
                "READ_HOURS",
                "READ_YESTERDAY",
                "READ_COMPLETE_UNTIL",
                "COUNT_OPEN",
            ),
        ),
        (dead_letter_store, ("LIST_DEAD_LETTERS", "COUNT_DEAD_LETTERS", "READ_DEAD_LETTER")),
    ],
)
async def test_every_statement_of_the_pages_is_within_its_rights(
    dashboard: "asyncpg.Connection[Any]", module: Any, names: tuple[str, ...]
) -> None:
    for name in names:
        statement = await dashboard.prepare(getattr(module, name))
        nothing = [None] * len(statement.get_parameters())
        await statement.fetch(*nothing)
