"""The way into the database as `glossa_auditor`: by GLOSSA_AUDITOR_URL or the state folder."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from services.doctor.verdict import CannotCheck
from services.local.bootstrap import describe, service_url
from services.local.errors import LocalError
from services.local.layout import AUDITOR, AUDITOR_VARIABLE, HOST, state_dir_from
from services.local.postgres import noted_port
from services.local.state import State
from services.local.supervisor import DATABASE_NAME
from services.runtime.database import CONNECT_ERRORS, connection_problem

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection

CONNECT_SECONDS = 10.0
# What a question ends with when the database goes away before it is answered.
LOST = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)
START_IT = "start the suite: `make run`"


def auditor_url(environment: Mapping[str, str] | None = None) -> str:
    """Where the suite's database is, for who may only read it."""
    environment = os.environ if environment is None else environment
    if url := environment.get(AUDITOR_VARIABLE):
        return url
    state = State(state_dir_from(environment))
    password = state.known_passwords().get(AUDITOR)
    if password is None:
        raise CannotCheck(
            f"{state.root} has no password of the auditor",
            next_step=f"{START_IT}, or set {AUDITOR_VARIABLE}",
        )
    if server := environment.get("DATABASE_URL"):
        return service_url(server, AUDITOR, password)
    port = noted_port(state.postgres)
    if port is None:
        raise CannotCheck(f"there is no database in {state.root}", next_step=START_IT)
    return service_url(f"postgresql://{HOST}:{port}/{DATABASE_NAME}", AUDITOR, password)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator["Connection"]:
    """One connection, or in one sentence why not; never a word of the address but the place."""
    try:
        place = describe(url)
    except LocalError:
        raise CannotCheck(
            f"{AUDITOR_VARIABLE} is malformed",
            next_step="write it as postgresql://glossa_auditor:password@host:5432/database",
        ) from None
    try:
        connection = await asyncpg.connect(
            url, timeout=CONNECT_SECONDS, server_settings={"application_name": "glossa-doctor"}
        )
    except CONNECT_ERRORS as error:
        raise CannotCheck(
            f"cannot connect to the database at {place}: {connection_problem(error)}",
            next_step=_remedy(error),
        ) from None
    try:
        yield connection
    finally:
        # What was seen counts, even if the database is gone by now.
        with suppress(*LOST):
            await connection.close(timeout=CONNECT_SECONDS)


def _remedy(error: Exception) -> str:
    if isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
        return "apply deploy/postgres/roles.sql and check the password of glossa_auditor"
    if isinstance(error, asyncpg.InvalidCatalogNameError):
        return f"name another database in {AUDITOR_VARIABLE}"
    return START_IT
