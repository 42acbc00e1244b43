"""Row-level security: what is read for a user is read by a role that sees nobody else's rows."""

from collections.abc import Mapping
from uuid import uuid4

import asyncpg
import pytest
from glossa.quota.v1 import quota_pb2 as pb

from services.quota.ledger_store import LedgerStore, acting_for
from services.runtime.database import Database
from tests.quota.conftest import Ledger, ask, operation_of

USER_TABLES = (
    "accounts",
    "explain_requests",
    "ledger_entries",
    "ai_request_log",
    "user_preferences",
    "ai_operations",
)


@pytest.fixture
async def two_users(ledger: Ledger) -> Ledger:
    """Rows of alice and bob in every table of users."""
    for user in ("alice", "bob"):
        generation = str(uuid4())
        await ledger.admit(ask(user, outcome=pb.OUTCOME_CACHED, generation_id=generation))
        await ledger.record(operation_of(user_id=user, generation_id=generation))
        await ledger.share(user, True)
    return ledger


@pytest.mark.parametrize("table", USER_TABLES)
async def test_a_user_role_sees_one_user(two_users: Ledger, database: Database, table: str) -> None:
    everybody = await two_users.connection.fetch(f"SELECT DISTINCT user_id FROM quota.{table}")
    assert {row["user_id"] for row in everybody} == {"alice", "bob"}

    async with acting_for(database, "alice") as connection:
        seen = await connection.fetch(f"SELECT user_id FROM quota.{table}")
    assert {row["user_id"] for row in seen} == {"alice"}


async def test_every_table_with_users_in_it_is_fenced(database: Database) -> None:
    async with database.connection() as connection:
        tables = await connection.fetch(
            "SELECT relname, relrowsecurity FROM pg_class"
            " JOIN pg_attribute ON attrelid = pg_class.oid"
            " WHERE relnamespace = 'quota'::regnamespace AND relkind = 'r' AND attname = 'user_id'"
        )
    assert {row["relname"] for row in tables} == set(USER_TABLES)
    assert all(row["relrowsecurity"] for row in tables)


async def test_sums_of_others_are_fenced_too(two_users: Ledger, database: Database) -> None:
    async with acting_for(database, "alice") as connection:
        rows = await connection.fetch("SELECT kind, subject FROM quota.spending")

    assert {row["kind"] for row in rows} == {"generation", "user_month"}
    months = [row["subject"] for row in rows if row["kind"] == "user_month"]
    assert [month.partition(" ")[0] for month in months] == ["alice"]


@pytest.mark.parametrize("name", ["", "nobody"])
async def test_naming_nobody_shows_nothing(
    two_users: Ledger, database: Database, name: str
) -> None:
    async with acting_for(database, name) as connection:
        for table in USER_TABLES:
            assert await connection.fetchval(f"SELECT count(*) FROM quota.{table}") == 0


async def test_a_user_role_can_change_nothing(two_users: Ledger, database: Database) -> None:
    for table in USER_TABLES:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with acting_for(database, "alice") as connection:
                await connection.execute(f"UPDATE quota.{table} SET user_id = 'mallory'")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            async with acting_for(database, "alice") as connection:
                await connection.execute(f"DELETE FROM quota.{table}")


async def test_the_fence_holds_whatever_the_statement_asks(
    two_users: Ledger, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that forgets to ask for one user still gets that user's rows alone."""
    careless = "services.quota.ledger_store.LIST_LEDGER"
    monkeypatch.setattr(
        careless,
        "SELECT entry_id, created_at, kind, units, user_id AS reason, request_id, NULL, NULL, NULL,"
        " NULL, NULL, NULL, NULL FROM quota.ledger_entries"
        " WHERE $1 <> '' AND entry_id < $2 LIMIT $3",
    )

    lines = await LedgerStore(database).list_ledger("alice", before=2**62, most=100)

    assert {line.reason for line in lines} == {"alice"}


async def test_the_role_ends_with_the_transaction(
    two_users: Ledger, database: Database, databases: Mapping[str, str]
) -> None:
    async with acting_for(database, "alice"):
        pass
    async with database.connection() as connection:
        seen = await connection.fetch("SELECT DISTINCT user_id FROM quota.accounts")
    assert len(seen) == 2


async def test_nobody_can_log_in_as_it(admin_url: str) -> None:
    connection = await asyncpg.connect(admin_url)
    try:
        role = await connection.fetchrow(
            "SELECT rolcanlogin, rolbypassrls, rolsuper FROM pg_roles"
            " WHERE rolname = 'glossa_quota_user'"
        )
    finally:
        await connection.close()
    assert role is not None
    assert tuple(role) == (False, False, False)
