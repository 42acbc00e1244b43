"""Every SQL statement of every service is understood by the schema its migrations make."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

import asyncpg
import pytest

import services
from services.local.layout import SERVICES


def statements() -> Iterator[tuple[str, str, str]]:
    """Service, name and text of every UPPER_SNAKE string in the store modules."""
    for service in SERVICES:
        package = importlib.import_module(f"{services.__name__}.{service}")
        for module in pkgutil.iter_modules(package.__path__):
            if module.name == "store" or module.name.endswith("_store"):
                store = importlib.import_module(f"{package.__name__}.{module.name}")
                for name, value in vars(store).items():
                    if name.isupper() and not name.startswith("_") and isinstance(value, str):
                        yield service, f"{module.name}.{name}", value


@pytest.mark.parametrize("service", SERVICES)
async def test_every_statement_can_be_prepared(service: str, databases: Mapping[str, str]) -> None:
    own = [(name, text) for owner, name, text in statements() if owner == service]
    connection = await asyncpg.connect(databases[service])
    try:
        for name, text in own:
            try:
                await connection.prepare(text)
            except asyncpg.PostgresError as error:
                pytest.fail(f"{service}.{name}: {error}")
    finally:
        await connection.close()
    assert own, "the store has no statements"


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("other", SERVICES)
async def test_a_role_cannot_reach_into_another_schema(
    service: str, other: str, databases: Mapping[str, str]
) -> None:
    if service == other:
        return
    connection = await asyncpg.connect(databases[service])
    try:
        tables = await connection.fetch(
            "SELECT table_name FROM pg_catalog.pg_tables AS t (schema_name, table_name)"
            " WHERE schema_name = $1",
            other,
        )
        assert tables, "nothing to be kept out of"
        for table in tables:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"SELECT * FROM {other}.{table['table_name']}")
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(f"CREATE TABLE {other}.intruder (id integer)")
    finally:
        await connection.close()


WRITES = (
    "INSERT INTO {table} DEFAULT VALUES",
    "DELETE FROM {table}",
    "TRUNCATE {table}",
    "ALTER TABLE {table} ADD COLUMN planted integer",
    "DROP TABLE {table}",
)
ELSEWHERE = (
    "CREATE TABLE {schema}.planted (id integer)",
    "CREATE SCHEMA planted",
    "SELECT nextval('cache.outbox_outbox_id_seq')",
    "SET ROLE glossa_{schema}",
)


@pytest.mark.parametrize("schema", SERVICES)
async def test_the_auditor_reads_every_table_and_writes_none(
    schema: str, admin_url: str, auditor_url: str
) -> None:
    admin, auditor = await asyncpg.connect(admin_url), await asyncpg.connect(auditor_url)
    try:
        assert await auditor.fetchval("SHOW default_transaction_read_only") == "on"
        # It may say that it wants to write; rights are what it lacks.
        await auditor.execute("SET default_transaction_read_only = off")
        tables = await auditor.fetch(
            "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = $1", schema
        )
        assert tables, "nothing to read"
        for table in (f"{schema}.{row['tablename']}" for row in tables):
            seen = await auditor.fetchval(f"SELECT count(*) FROM {table}")
            assert seen == await admin.fetchval(f"SELECT count(*) FROM {table}")
            for statement in WRITES:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await auditor.execute(statement.format(table=table))
        for statement in ELSEWHERE:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await auditor.execute(statement.format(schema=schema))
    finally:
        await admin.close()
        await auditor.close()


async def test_the_auditor_reads_what_later_migrations_make(
    databases: Mapping[str, str], auditor_url: str
) -> None:
    auditor = await asyncpg.connect(auditor_url)
    for service in SERVICES:
        own = await asyncpg.connect(databases[service])
        await own.execute(f"CREATE TABLE {service}.later AS SELECT 7 AS number")
        await own.close()
        assert await auditor.fetchval(f"SELECT number FROM {service}.later") == 7
    await auditor.close()


async def test_row_level_security_hides_nothing_from_the_auditor(
    admin_url: str, auditor_url: str
) -> None:
    admin, auditor = await asyncpg.connect(admin_url), await asyncpg.connect(auditor_url)
    await admin.execute(
        "INSERT INTO quota.accounts (user_id, balance_units, period_ends_at)"
        " VALUES ('alice', 0, now()), ('bob', 0, now())"
    )
    fenced = await admin.fetch(
        "SELECT oid::regclass::text AS name FROM pg_class WHERE relrowsecurity"
        " AND NOT EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid"
        " AND polname = 'auditor_sees_all')"
    )
    seen = await auditor.fetchval("SELECT count(*) FROM quota.accounts")
    await admin.close()
    await auditor.close()
    assert (seen, fenced) == (2, [])
