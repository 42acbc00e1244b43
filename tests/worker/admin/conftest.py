"""A worker with pages, and visitors who speak to them as browsers do."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.suite import Keys, Suite
from tests.worker.conftest import StartWorker

ADMIN = "admin@example.org"
HOUR = timedelta(hours=1)
SESSION = "glossa_admin"


@dataclass(kw_only=True)
class Visitor:
    """One browser, as far as HTTP goes."""

    client: httpx2.AsyncClient
    url: str

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.client.get(f"{self.url}{path}", **options)

    async def post(
        self, path: str, fields: Mapping[str, Any], *, origin: str | None = None
    ) -> httpx2.Response:
        headers = {"origin": self.url if origin is None else origin}
        return await self.client.post(f"{self.url}{path}", data=fields, headers=headers)

    async def form_token(self, path: str = "/admin/sign-in") -> str:
        return form_token_in((await self.get(path)).text)

    async def sign_in(self, token: str, **fields: str) -> httpx2.Response:
        form_token = await self.form_token()
        return await self.post(
            "/admin/sign-in", {"form_token": form_token, "token": token, **fields}
        )


@dataclass(frozen=True, kw_only=True)
class Pages:
    """Where the pages are, and who may issue tokens for them."""

    url: str
    keys: Keys

    def token(self, email: str = ADMIN, *scopes: str, lifetime: timedelta = HOUR) -> str:
        return self.keys.token(*(scopes or ("admin",)), email=email, lifetime=lifetime)

    @asynccontextmanager
    async def visitor(self) -> AsyncIterator[Visitor]:
        # Patient, since test machines are shared.
        async with httpx2.AsyncClient(timeout=60, trust_env=False) as client:
            yield Visitor(client=client, url=self.url)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Visitor]:
        async with self.visitor() as visitor:
            answer = await visitor.sign_in(self.token())
            assert answer.status_code == 303, answer.text
            yield visitor


def form_token_in(text: str) -> str:
    found = re.search(r'name="form_token" value="([0-9a-f]{64})"', text)
    assert found, "the page has no form"
    return found[1]


@pytest.fixture
async def pages(
    cluster: Suite, start_worker: StartWorker, dashboard_url: str, keys: Keys
) -> AsyncIterator[Pages]:
    settings = {"dashboard_database_url": dashboard_url, "admin_emails": f"x@y.z, {ADMIN}"}
    async with start_worker(**settings) as worker:
        yield Pages(url=f"http://{worker.metrics_address}", keys=keys)


@pytest.fixture
async def visitor(pages: Pages) -> AsyncIterator[Visitor]:
    async with pages.visitor() as visitor:
        yield visitor


@pytest.fixture
async def admin(pages: Pages) -> AsyncIterator[Visitor]:
    """Signed in."""
    async with pages.admin() as visitor:
        yield visitor


@pytest.fixture
async def superuser(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    try:
        yield connection
    finally:
        await connection.close()
