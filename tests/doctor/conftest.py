"""A sound past to copy, for tests that break one thing in it."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from services.local.bootstrap import service_url
from services.local.layout import AUDITOR
from tests.conftest import PASSWORDS, TEMPLATE
from tests.doctor.history import write_history

GENERATIONS = 300
# Short enough for nothing to have waited too long.
AN_HOUR = timedelta(minutes=55)


@pytest.fixture(scope="module")
async def past(template: str) -> AsyncIterator[str]:
    """The name of a database with a past."""
    name = f"past_{uuid4().hex}"
    server = await asyncpg.connect(template)
    await server.execute(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
    admin = await asyncpg.connect(template.rpartition("/")[0] + f"/{name}")
    await write_history(admin, GENERATIONS, AN_HOUR)
    await admin.close()
    yield name
    await server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await server.close()


@pytest.fixture
async def undone(template: str, past: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """The superuser of the past itself, in a transaction that never was. No copy: it is quick."""
    connection = await asyncpg.connect(template.rpartition("/")[0] + f"/{past}")
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    yield connection
    await transaction.rollback()
    await connection.close()


@pytest.fixture
async def admin(template: str, past: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """The superuser of a copy of it."""
    name = f"test_{uuid4().hex}"
    server = await asyncpg.connect(template)
    await server.execute(f'CREATE DATABASE "{name}" TEMPLATE "{past}" STRATEGY file_copy')
    connection = await asyncpg.connect(template.rpartition("/")[0] + f"/{name}")
    yield connection
    await connection.close()
    await server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await server.close()


@pytest.fixture
async def auditor(
    template: str, admin: "asyncpg.Connection[Any]"
) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """The doctor's own way in."""
    name = await admin.fetchval("SELECT current_database()")
    url = service_url(template.rpartition("/")[0] + f"/{name}", AUDITOR, PASSWORDS[AUDITOR])
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()
