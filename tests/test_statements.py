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
