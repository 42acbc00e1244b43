"""A real suite: `glossa up`, four service processes, Postgres and a model the test holds."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from services.doctor.bounds import GRACE
from services.doctor.examine import find_violations
from services.local.state import State
from services.runtime.auth import Signer
from tests.fake_openai import FakeOpenAI, fake_openai
from tests.local.up import Up, started
from tests.suite import Keys, Suite

# A dead worker's lease runs out while the test looks on.
CLOCKS = {
    "GLOSSA_LEASE_SECONDS": "2",
    "GLOSSA_RENEW_SECONDS": "0.5",
    "GLOSSA_SWEEP_SECONDS": "0.5",
    "GLOSSA_POLL_SECONDS": "0.2",
}


@dataclass(frozen=True, kw_only=True)
class Street:
    """Four processes, as their clients and their operator see them."""

    up: Up
    suite: Suite
    model: FakeOpenAI
    admin: "asyncpg.Connection[Any]"

    async def balance(self, user: str) -> int | None:
        balance: int | None = await self.admin.fetchval(
            "SELECT balance_units FROM quota.accounts WHERE user_id = $1", user
        )
        return balance


@pytest.fixture
async def street() -> AsyncIterator[Street]:
    folder = reachable_folder()
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(fake_openai())
        up = await stack.enter_async_context(
            started(
                folder, command=None, OPENAI_API_KEY="secret", OPENAI_BASE_URL=model.url, **CLOCKS
            )
        )
        admin = await asyncpg.connect(admin_url(up.state))
        stack.push_async_callback(admin.close)
        suite = Suite(addresses=up.ports.addresses(), keys=keys_of(up.state), exits=stack)
        yield Street(up=up, suite=suite, model=model, admin=admin)
        # Whatever the test did to them: no promise was broken on the way.
        assert await find_violations(admin, grace=GRACE) == {}
    shutil.rmtree(folder)


def reachable_folder() -> Path:
    """One that Postgres can reach under an account of its own, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="glossa-test-"))
    folder.chmod(0o711)
    return folder


def admin_url(state: State) -> str:
    """The superuser's way in, for looking at all schemas at once."""
    password = (state.postgres / "password").read_text()
    port = (state.postgres / "port").read_text()
    return f"postgresql://postgres:{password}@127.0.0.1:{port}/glossa"


def keys_of(state: State) -> Keys:
    return Keys(folder=state.root / "keys", signer=Signer(state.signing_key_file.read_bytes()))
