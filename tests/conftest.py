"""What every test may use: a real Postgres, a migrated database of its own, keys and a suite."""

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from services.local.bootstrap import bootstrap, ensure_database, service_url
from services.local.layout import AUDITOR, DASHBOARD, LOGINS, SERVICES
from services.local.postgres import EmbeddedPostgres
from services.runtime.auth import generate_keys
from services.runtime.logging import configure_logging
from tests.suite import Keys, Suite, running_suite

configure_logging("tests", level="WARNING")

# Tests crash processes, not machines: nothing here must survive a power cut.
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
PASSWORDS = {login: f"test-{login}" for login in LOGINS}
TEMPLATE = "glossa_template"


@pytest.fixture(scope="session")
async def template() -> AsyncIterator[str]:
    """A cluster for this test process, with one migrated database to copy; its admin address."""
    folder = Path(tempfile.mkdtemp(prefix="glossa-test-"))
    async with EmbeddedPostgres(folder, options=QUICK) as postgres:
        url = await ensure_database(postgres.url, TEMPLATE)
        await bootstrap(url, PASSWORDS)
        yield postgres.url
    shutil.rmtree(folder)


@pytest.fixture
async def admin_url(template: str) -> AsyncIterator[str]:
    """A migrated database of the test's own, as its superuser sees it."""
    name = f"test_{uuid4().hex}"
    connection = await asyncpg.connect(template)
    try:
        await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
        yield template.rpartition("/")[0] + f"/{name}"
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await connection.close()


@pytest.fixture
def databases(admin_url: str) -> Mapping[str, str]:
    """The same database, as each service's own role sees it."""
    return {service: service_url(admin_url, service, PASSWORDS[service]) for service in SERVICES}


@pytest.fixture
def auditor_url(admin_url: str) -> str:
    """The same database, as the doctor sees it."""
    return service_url(admin_url, AUDITOR, PASSWORDS[AUDITOR])


@pytest.fixture
def dashboard_url(admin_url: str) -> str:
    """The same database, as the admin pages see it."""
    return service_url(admin_url, DASHBOARD, PASSWORDS[DASHBOARD])


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """A signing key for this test process, and the services' own tokens."""
    return Keys.make(tmp_path_factory.mktemp("keys"), *generate_keys())


@pytest.fixture
async def suite(databases: Mapping[str, str], keys: Keys, tmp_path: Path) -> AsyncIterator[Suite]:
    """Four services in this process, on ports of their own, over the test's database."""
    async with running_suite(databases, keys, tmp_path) as suite:
        yield suite
