"""Prepares a database for the suite: roles, schemas, passwords, and every service's migrations."""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import asyncpg

from services.local.errors import LocalError
from services.local.layout import SERVICES
from services.runtime.database import CONNECT_ERRORS, connection_problem
from services.runtime.errors import DependencyDown
from services.runtime.migrate import MigrationError, migrate

PROJECT = Path(__file__).resolve().parents[2]
ROLES_SQL = PROJECT / "deploy" / "postgres" / "roles.sql"
CONNECT_SECONDS = 10.0
RACE_TRIES = 10
SCRAM_ROUNDS = 4096  # what the server itself uses

MAY_CREATE_ROLES = """
SELECT rolsuper OR rolcreaterole FROM pg_catalog.pg_roles WHERE rolname = current_user
"""
DATABASE_EXISTS = "SELECT true FROM pg_catalog.pg_database WHERE datname = $1"


async def bootstrap(admin_url: str, passwords: Mapping[str, str]) -> dict[str, str]:
    """Make roles, schemas and tables where they are missing; return each service's own address."""
    urls = await prepare_roles(admin_url, passwords)
    await migrate_all(urls)
    return urls


async def prepare_roles(admin_url: str, passwords: Mapping[str, str]) -> dict[str, str]:
    """Make roles and schemas where they are missing; return each service's own address."""
    async with _admin(admin_url) as connection:
        if not await connection.fetchval(MAY_CREATE_ROLES):
            raise LocalError(
                f"the user of {describe(admin_url)} may not create roles",
                next_step="connect as one that may, such as the superuser",
            )
        await _apply_roles(connection, passwords)
    return {service: service_url(admin_url, service, passwords[service]) for service in SERVICES}


async def migrate_all(urls: Mapping[str, str]) -> dict[str, list[str]]:
    """Bring each service's schema up to date with its own role; return the names applied."""
    try:
        return {service: await _migrate_service(service, url) for service, url in urls.items()}
    except MigrationError as error:
        raise LocalError(str(error)) from error
    except DependencyDown as error:
        raise LocalError(error.message) from error


async def ensure_database(admin_url: str, name: str) -> str:
    """Make a database beside the one of `admin_url` unless it exists, and return its address."""
    async with _admin(admin_url) as connection:
        if not await connection.fetchval(DATABASE_EXISTS, name):
            await connection.execute(f'CREATE DATABASE "{name}"')
    return urlunsplit(urlsplit(admin_url)._replace(path=f"/{name}"))


def service_url(admin_url: str, service: str, password: str) -> str:
    """The address of the same database for a service's own role, or a reader's."""
    parts = urlsplit(admin_url)
    address = parts.netloc.rpartition("@")[2]
    options = [(key, value) for key, value in parse_qsl(parts.query) if key not in _CREDENTIALS]
    netloc = f"glossa_{service}:{quote(password, safe='')}@{address}"
    return urlunsplit(parts._replace(netloc=netloc, query=urlencode(options)))


def describe(url: str) -> str:
    """Which server and database an address means, without who and the password."""
    try:
        parts = urlsplit(url)
        port = parts.port or 5432
    except ValueError:
        raise _malformed() from None
    # An unquoted "/" in a password moves the rest of it into the path.
    if parts.scheme not in {"postgresql", "postgres"} or "@" in parts.path:
        raise _malformed()
    return f"{parts.hostname or 'localhost'}:{port}{parts.path}"


_CREDENTIALS = {"user", "password", "passfile"}


async def _migrate_service(service: str, url: str) -> list[str]:
    folder = PROJECT / "services" / service / "migrations"
    return await migrate(url, schema=service, folder=folder)


@asynccontextmanager
async def _admin(admin_url: str) -> AsyncIterator[asyncpg.Connection]:
    place = describe(admin_url)
    try:
        connection = await asyncpg.connect(admin_url, timeout=CONNECT_SECONDS)
    except CONNECT_ERRORS as error:
        raise _cannot_connect(place, error) from None
    try:
        yield connection
    finally:
        await connection.close(timeout=CONNECT_SECONDS)


def _cannot_connect(place: str, error: Exception) -> LocalError:
    if not isinstance(error, OSError | asyncpg.PostgresError):
        return _malformed()
    message = f"cannot connect to the database at {place}: {connection_problem(error)}"
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return LocalError(message, next_step="check the user and the password in DATABASE_URL")
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return LocalError(message, next_step="create it first, or name another in DATABASE_URL")
    if isinstance(error, asyncpg.PostgresError):
        return LocalError(message)
    return LocalError(
        message, next_step="is PostgreSQL running there? unset DATABASE_URL to use the embedded one"
    )


def _malformed() -> LocalError:
    # Not a word of the address: nobody knows which part of it is the password.
    return LocalError(
        "DATABASE_URL is malformed",
        next_step="write it as postgresql://user:password@host:5432/database",
    )


async def _apply_roles(connection: asyncpg.Connection, passwords: Mapping[str, str]) -> None:
    for attempt in range(1, RACE_TRIES + 1):
        try:
            async with connection.transaction():
                await connection.execute(ROLES_SQL.read_text("utf-8"))
                for login, password in passwords.items():
                    await connection.execute(_set_password(login, password))
        except (asyncpg.InternalServerError, asyncpg.UniqueViolationError) as error:
            # Roles belong to the whole server: a bootstrap of another database is at them too.
            if attempt == RACE_TRIES:
                raise LocalError(f"cannot prepare the roles: {error}") from error
            await asyncio.sleep(0.05 * attempt)
        except asyncpg.InsufficientPrivilegeError as error:
            raise LocalError(
                f"the user of DATABASE_URL may not prepare roles and schemas: {error.args[0]}",
                next_step="connect as who made the glossa_… roles here, or as the superuser",
            ) from error
        except asyncpg.PostgresError as error:
            raise LocalError(f"cannot prepare the roles: {error}") from error
        else:
            return


def _set_password(login: str, password: str) -> str:
    # Sent as a verifier, so that not even the server's statement log ever holds the password.
    return f"ALTER ROLE glossa_{login} PASSWORD '{_scram_verifier(password)}'"


def _scram_verifier(password: str) -> str:
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, SCRAM_ROUNDS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    parts = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return "SCRAM-SHA-256${}:{}${}:{}".format(SCRAM_ROUNDS, *parts)
