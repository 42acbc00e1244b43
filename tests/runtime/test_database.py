"""The pool: trouble is told as trouble, mistakes stay mistakes, nothing waits for ever."""

import asyncio
from collections.abc import Mapping

import asyncpg
import pytest

from services.runtime import database as module
from services.runtime.database import open_database
from services.runtime.errors import DependencyDown


async def test_json_comes_back_as_python_objects(databases: Mapping[str, str]) -> None:
    async with (
        open_database(databases["cache"], application_name="test") as database,
        database.connection() as connection,
    ):
        value = await connection.fetchval("SELECT $1::jsonb", {"a": [1, None, "ü"]})
    assert value == {"a": [1, None, "ü"]}


async def test_a_failed_block_leaves_nothing_behind(databases: Mapping[str, str]) -> None:
    insert = (
        "INSERT INTO quota.accounts (user_id, balance_units, period_ends_at) VALUES ($1, 0, now())"
    )
    async with open_database(databases["quota"], application_name="test") as database:

        async def fail() -> None:
            async with database.transaction() as connection:
                await connection.execute(insert, "alice")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM quota.accounts") == 0


async def test_a_server_that_is_away_is_a_dependency_down() -> None:
    with pytest.raises(DependencyDown) as caught:
        async with open_database("postgresql://x:y@127.0.0.1:1/z", application_name="test"):
            pass
    assert caught.value.reason == "DATABASE_UNAVAILABLE"
    assert caught.value.retry_after is not None


async def test_a_lost_connection_is_a_dependency_down_and_the_next_call_works(
    databases: Mapping[str, str], admin_url: str
) -> None:
    async with open_database(databases["cache"], application_name="test") as database:
        admin = await asyncpg.connect(admin_url)

        async def lose() -> None:
            async with database.connection() as connection:
                own = await connection.fetchval("SELECT pg_backend_pid()")
                await admin.execute("SELECT pg_terminate_backend($1)", own)
                await connection.fetchval("SELECT 1")

        with pytest.raises(DependencyDown):
            await lose()
        await admin.close()
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1


async def test_a_mistake_in_sql_is_not_called_trouble(databases: Mapping[str, str]) -> None:
    async with open_database(databases["cache"], application_name="test") as database:
        with pytest.raises(asyncpg.UndefinedTableError):
            async with database.connection() as connection:
                await connection.fetch("SELECT * FROM cache.nothing")


async def test_nobody_waits_for_ever_for_a_connection(
    databases: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACQUIRE_SECONDS", 0.1)
    async with (
        open_database(databases["cache"], application_name="test", pool_size=1) as database,
        database.connection(),
    ):
        with pytest.raises(DependencyDown):
            async with asyncio.timeout(10), database.connection():
                pass
