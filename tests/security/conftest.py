"""What the tests of this folder attack: four services in this process, and a suite behind mTLS."""

import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from uuid import uuid4

import asyncpg
import pytest
import trustme

from services.local.bootstrap import service_url
from services.local.layout import SERVICES
from tests.conftest import PASSWORDS, TEMPLATE
from tests.e2e.conftest import keys_of, reachable_folder
from tests.fake_openai import FakeOpenAI, fake_openai
from tests.local.up import Up, started
from tests.security.certificates import Files, client_credentials, write_certificate
from tests.suite import Keys, Suite, running_suite

# Words that nothing else would say, so that they are found wherever they leak.
SECRETS = {
    "OPENAI_API_KEY": "sk-recognisable-model-key-5f0d",
    "GLOSSA_CALLBACK_SECRET": "recognisable-callback-secret-9c41-and-long",
}


# Not for the session: other tests count what runs in their process.
@pytest.fixture(scope="module")
async def town(
    template: str, keys: Keys, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Suite]:
    """One suite for many attacks: what one of them breaks, the next one meets."""
    name = f"town_{uuid4().hex}"
    connection = await asyncpg.connect(template)
    await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
    admin_url = template.rpartition("/")[0] + f"/{name}"
    databases: Mapping[str, str] = {
        service: service_url(admin_url, service, PASSWORDS[service]) for service in SERVICES
    }
    folder = tmp_path_factory.mktemp("town")
    # A test may ask as often as it likes.
    generous = {"soft_limit": 10**6, "hard_limit": 10**6, "daily_limit": 10**6}
    async with running_suite(databases, keys, folder, quota=generous) as suite:
        yield suite
    await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await connection.close()


@dataclass(frozen=True, kw_only=True)
class Fortress:
    """`glossa up` with mutual TLS and secrets that can be recognised."""

    up: Up
    suite: Suite
    model: FakeOpenAI
    authority: trustme.CA
    files: Files

    @property
    def environment(self) -> dict[str, str]:
        """For commands beside it."""
        return self.files.environment()


@pytest.fixture(scope="session")
async def fortress() -> AsyncIterator[Fortress]:
    folder, authority = reachable_folder(), trustme.CA()
    files = write_certificate(folder / "tls", authority)
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(fake_openai())
        up = await stack.enter_async_context(
            started(
                folder, command=None, OPENAI_BASE_URL=model.url, **SECRETS, **files.environment()
            )
        )
        suite = Suite(
            addresses=up.ports.addresses(),
            keys=keys_of(up.state),
            exits=stack,
            credentials=client_credentials(authority, shown_by=authority),
        )
        yield Fortress(up=up, suite=suite, model=model, authority=authority, files=files)
    shutil.rmtree(folder)
