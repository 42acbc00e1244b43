"""A real suite of four processes, a doctor beside it, and what their metrics ports say."""

import asyncio
import shutil
import signal
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from services.local.layout import SERVICES
from tests.e2e.conftest import admin_url, keys_of, reachable_folder
from tests.local.up import GLOSSA, Up, environment, started
from tests.suite import Suite, lecture

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, kw_only=True)
class Metered:
    """The suite as its clients, its operator and Prometheus see it."""

    up: Up
    suite: Suite
    # Where the doctor is scraped.
    doctor: str
    admin: "asyncpg.Connection[Any]"

    @property
    def targets(self) -> Mapping[str, str]:
        services = {service: self.up.ports.metrics_address(service) for service in SERVICES}
        return {**services, "doctor": self.doctor}

    async def pages(self) -> Mapping[str, str]:
        """What each of them serves to Prometheus."""
        return {
            name: await read(f"http://{address}/metrics") for name, address in self.targets.items()
        }

    async def series(self) -> set[Series]:
        pages = await self.pages()
        return {
            (sample.name, frozenset({"service": service, **sample.labels}.items()))
            for service, page in pages.items()
            for sample in samples(page)
        }

    async def explain_and_wait(self, user: str) -> None:
        """One page, from its upload to its result."""
        uploaded = await self.suite.upload(user, lecture("Entropy is a measure of disorder."))
        answer = await self.suite.explain(user, uploaded.file.pdf_hash)
        async with asyncio.timeout(60):
            while True:
                found = await self.suite.generation(answer.generation_id)
                if found.status == cache_pb2.GENERATION_STATUS_READY:
                    return
                await asyncio.sleep(0.05)


def hit(user: str, pdf_hash: str) -> quota_pb2.AdmitRequest:
    """A charge for something that is ready."""
    return quota_pb2.AdmitRequest(
        request_id=str(uuid4()),
        user_id=user,
        endpoint="explain_page",
        outcome=quota_pb2.OUTCOME_CACHED,
        generation_id=str(uuid4()),
        page=quota_pb2.PageContext(
            pdf_hash=pdf_hash,
            page=1,
            locale="en",
            effective_mode=registry_pb2.EFFECTIVE_MODE_TEXT_ONLY,
        ),
    )


async def read(url: str) -> str:
    with await asyncio.to_thread(urllib.request.urlopen, url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def samples(page: str) -> Iterator[Sample]:
    return (sample for family in text_string_to_metric_families(page) for sample in family.samples)


@asynccontextmanager
async def watching_doctor(up: Up) -> AsyncIterator[str]:
    """`glossa doctor` that looks again and again; the address of its metrics."""
    process = await asyncio.create_subprocess_exec(
        *GLOSSA,
        *("doctor", "--watch", "1", "--metrics-port", "0", "--json"),
        env=environment(up.state.root.parent, up.ports),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            told = (await process.stderr.readline()).decode().split()[-1]
            address = urllib.parse.urlsplit(told).netloc
            page = f"http://{address}/metrics"
            while "glossa_doctor_violations{" not in await read(page):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        await process.communicate()


@pytest.fixture(scope="module")
async def metered() -> AsyncIterator[Metered]:
    folder = reachable_folder()
    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(started(folder))
        admin = await asyncpg.connect(admin_url(up.state))
        stack.push_async_callback(admin.close)
        suite = Suite(addresses=up.ports.addresses(), keys=keys_of(up.state), exits=stack)
        doctor = await stack.enter_async_context(watching_doctor(up))
        yield Metered(up=up, suite=suite, doctor=doctor, admin=admin)
    shutil.rmtree(folder)
