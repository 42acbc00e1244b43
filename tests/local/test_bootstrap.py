"""The database enforces who may touch what; preparing it twice or at once changes nothing."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from services.local import bootstrap as bootstrap_module
from services.local.bootstrap import bootstrap, describe, ensure_database, service_url
from services.local.errors import LocalError
from services.local.layout import LOGINS, SERVICES
from services.local.postgres import EmbeddedPostgres

MALFORMED = "DATABASE_URL is malformed; write it as postgresql://user:password@host:5432/database"
PASSWORDS = {login: f'{login} it\'s "quoted" %41 $x$' for login in LOGINS}


@pytest.fixture
async def database(cluster: EmbeddedPostgres) -> str:
    return await ensure_database(cluster.url, f"test_{secrets.token_hex(6)}")


@pytest.fixture(autouse=True)
def migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One small migration for each service; the real ones have tests of their own."""
    for service in SERVICES:
        folder = tmp_path / "services" / service / "migrations"
        folder.mkdir(parents=True)
        (folder / "0001_create_note.sql").write_text(f"CREATE TABLE {service}.notes (note text);")
    monkeypatch.setattr(bootstrap_module, "PROJECT", tmp_path)
    return tmp_path


@pytest.fixture
async def cache(database: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    urls = await bootstrap(database, PASSWORDS)
    connection = await asyncpg.connect(urls["cache"])
    yield connection
    await connection.close()


async def test_each_service_gets_an_address_that_works_for_its_own_tables(database: str) -> None:
    urls = await bootstrap(database, PASSWORDS)

    for service in SERVICES:
        connection = await asyncpg.connect(urls[service])
        await connection.execute("INSERT INTO notes VALUES ('mine')")
        assert await connection.fetchval(f"SELECT note FROM {service}.notes") == "mine"
        assert await connection.fetchval("SELECT current_user") == f"glossa_{service}"
        await connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM quota.notes",
        "INSERT INTO registry.notes VALUES ('x')",
        "CREATE TABLE worker.planted (x int)",
        "CREATE TABLE public.planted (x int)",
        "CREATE TEMPORARY TABLE planted (x int)",
        "CREATE SCHEMA planted",
        "CREATE ROLE planted",
        "SET ROLE glossa_quota",
    ],
)
async def test_a_role_reaching_beyond_its_schema_is_refused(
    cache: "asyncpg.Connection[asyncpg.Record]", statement: str
) -> None:
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await cache.execute(statement)


async def test_roles_carry_time_outs(cache: "asyncpg.Connection[asyncpg.Record]") -> None:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")

    assert [await cache.fetchval(f"SHOW {name}") for name in names] == ["30s", "10s", "30s"]


async def test_preparing_again_changes_nothing_but_the_passwords(database: str) -> None:
    before = await bootstrap(database, PASSWORDS)
    after = await bootstrap(database, PASSWORDS | {"quota": "another"})

    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(before["quota"])
    await (await asyncpg.connect(after["quota"])).close()


async def test_databases_of_one_server_may_be_prepared_at_once(cluster: EmbeddedPostgres) -> None:
    names = [f"test_{secrets.token_hex(6)}" for _ in range(4)]
    urls = [await ensure_database(cluster.url, name) for name in names]

    prepared = await asyncio.gather(*(bootstrap(url, PASSWORDS) for url in urls))

    assert [len(addresses) for addresses in prepared] == [4, 4, 4, 4]


async def test_a_copy_of_a_prepared_database_is_prepared(
    cluster: EmbeddedPostgres, database: str
) -> None:
    await bootstrap(database, PASSWORDS)
    template, copy = database.rpartition("/")[2], f"test_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(cluster.url)
    await admin.execute(f"CREATE DATABASE {copy} TEMPLATE {template}")
    await admin.close()

    url = service_url(cluster.url_of(copy), "quota", PASSWORDS["quota"])
    connection = await asyncpg.connect(url)
    await connection.execute("INSERT INTO notes VALUES ('copied')")
    await connection.close()


async def test_a_role_that_may_create_roles_is_enough(cluster: EmbeddedPostgres) -> None:
    # Hosted databases give no superuser away. Roles made by one are beyond its rights, so they go.
    name = f"test_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(cluster.url)
    await admin.execute(f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD 'pw'")
    await admin.execute(f"CREATE DATABASE {name} OWNER {name}")
    for role in (*LOGINS, "quota_user"):
        await drop_role_everywhere(cluster, admin, f"glossa_{role}")
    await admin.close()

    url = f"postgresql://{name}:pw@127.0.0.1:{cluster.port}/{name}"
    urls = await bootstrap(url, PASSWORDS)
    await bootstrap(url, PASSWORDS)

    await (await asyncpg.connect(urls["worker"])).close()


async def drop_role_everywhere(
    cluster: EmbeddedPostgres, admin: "asyncpg.Connection[asyncpg.Record]", role: str
) -> None:
    if not await admin.fetchval("SELECT true FROM pg_roles WHERE rolname = $1", role):
        return
    for row in await admin.fetch("SELECT datname FROM pg_database WHERE datallowconn"):
        connection = await asyncpg.connect(cluster.url_of(row["datname"]))
        await connection.execute(f"DROP OWNED BY {role} CASCADE")
        await connection.close()
    await admin.execute(f"DROP ROLE {role}")


async def test_a_role_that_may_not_create_roles_is_told_so(cluster: EmbeddedPostgres) -> None:
    name = f"test_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(cluster.url)
    await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    await admin.close()

    with pytest.raises(LocalError, match="may not create roles"):
        await bootstrap(f"postgresql://{name}:pw@127.0.0.1:{cluster.port}/postgres", PASSWORDS)


async def test_roles_that_somebody_else_made_are_told_with_the_remedy(
    cluster: EmbeddedPostgres, database: str
) -> None:
    await bootstrap(database, PASSWORDS)  # by the superuser
    name = f"test_{secrets.token_hex(6)}"
    admin = await asyncpg.connect(cluster.url)
    await admin.execute(f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD 'pw'")
    await admin.execute(f"CREATE DATABASE {name} OWNER {name}")
    await admin.close()

    with pytest.raises(LocalError) as caught:
        await bootstrap(f"postgresql://{name}:pw@127.0.0.1:{cluster.port}/{name}", PASSWORDS)

    assert str(caught.value).startswith("the user of DATABASE_URL may not prepare roles")
    assert str(caught.value).endswith(
        "; connect as who made the glossa_… roles here, or as the superuser"
    )
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresql://u:sesame@127.0.0.1:1/x", "at 127.0.0.1:1/x: connection refused"),
        ("postgresql://u:sesame@127.0.0.1:1/x", "; is PostgreSQL running there?"),
        ("postgresql://u:sesame/y@host/x", MALFORMED),
        ("postgresql://u:sesame@127.0.0.1:99999/x", MALFORMED),
        ("postgresql://u:sesame@127.0.0.1:abc/x", MALFORMED),
        ("postgresql://u:sesame@127.0.0.1/x?sslmode=sesame", MALFORMED),
        ("mysql://u:sesame@127.0.0.1/x", MALFORMED),
        ("postgresql://u:1/sesame@127.0.0.1/x", MALFORMED),
        ("sesame", MALFORMED),
    ],
)
async def test_a_broken_address_is_one_sentence_without_the_password(
    url: str, problem: str
) -> None:
    with pytest.raises(LocalError) as caught:
        await bootstrap(url, PASSWORDS)

    assert problem in str(caught.value)
    assert "sesame" not in str(caught.value)


async def test_a_wrong_password_and_a_missing_database_are_told_with_the_remedy(
    cluster: EmbeddedPostgres,
) -> None:
    with pytest.raises(LocalError, match=r"password authentication failed.*; check the user"):
        await bootstrap(f"postgresql://postgres:no@127.0.0.1:{cluster.port}/postgres", PASSWORDS)
    with pytest.raises(LocalError, match='database "nowhere" does not exist; create it'):
        await bootstrap(cluster.url_of("nowhere"), PASSWORDS)


async def test_passwords_never_reach_the_server(database: str) -> None:
    await bootstrap(database, PASSWORDS)

    connection = await asyncpg.connect(database)
    stored = await connection.fetch(
        "SELECT rolpassword FROM pg_authid WHERE rolname LIKE 'glossa\\_%' AND rolcanlogin"
    )
    await connection.close()
    assert len(stored) == len(LOGINS)
    assert all(row["rolpassword"].startswith("SCRAM-SHA-256$4096:") for row in stored)


def test_options_of_the_address_are_kept_and_its_credentials_are_not() -> None:
    url = "postgresql://admin:secret@db.example:6432/main?sslmode=require&user=x&password=y"

    made = service_url(url, "cache", "p/w@")

    assert made == "postgresql://glossa_cache:p%2Fw%40@db.example:6432/main?sslmode=require"


def test_an_address_is_described_without_its_user() -> None:
    assert describe("postgresql://admin:secret@db.example/main") == "db.example:5432/main"
