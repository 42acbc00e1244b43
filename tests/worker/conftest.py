"""A suite whose model is a loopback server the test can hold, and further workers beside it."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from services.local.free_ports import free_ports
from services.runtime.server import Running, running
from services.runtime.settings import ExplanationSettings
from services.worker.__main__ import compose
from services.worker.config import Config
from tests.fake_openai import FakeOpenAI, fake_openai
from tests.suite import Keys, Suite, running_suite

# Leases and retries run on clocks a test can wait for.
QUICK_CACHE = {
    "lease_seconds": 1.5,
    "sweep_seconds": 0.2,
    "poll_seconds": 0.2,
    "backoff_seconds": (0.05, 0.05),
    "backoff_jitter_seconds": 0,
}


# One user may ask for a whole lecture at once.
GENEROUS_QUOTA = {"hard_limit": 10_000, "daily_limit": 10_000}


class StartWorker(Protocol):
    """Starts a worker of the test's own; settings as in its Config."""

    def __call__(self, **settings: Any) -> AbstractAsyncContextManager[Running]: ...


@pytest.fixture
async def model() -> AsyncIterator[FakeOpenAI]:
    async with fake_openai() as server:
        yield server


@pytest.fixture
def explanation(model: FakeOpenAI) -> ExplanationSettings:
    return ExplanationSettings.model_validate(
        {"openai_api_key": "secret", "openai_base_url": model.url}
    )


@pytest.fixture
def worker_port() -> int:
    """Where the Cache expects a worker; one that is to hear of samples listens there."""
    return free_ports().port("worker")


@pytest.fixture
async def cluster(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    explanation: ExplanationSettings,
    worker_port: int,
) -> AsyncIterator[Suite]:
    """Everything but a worker."""
    async with running_suite(
        databases,
        keys,
        tmp_path,
        with_worker=False,
        explanation=explanation,
        cache=QUICK_CACHE | {"worker_address": f"127.0.0.1:{worker_port}"},
        quota=GENEROUS_QUOTA,
    ) as suite:
        yield suite


@pytest.fixture
def worker_config(
    cluster: Suite, databases: Mapping[str, str], keys: Keys, explanation: ExplanationSettings
) -> Callable[..., Config]:
    """Settings of a worker of this cluster; the test may change them."""

    def config(**settings: Any) -> Config:
        values = {
            "database_url": databases["worker"],
            "verify_key_file": keys.verify_key_file,
            "token_file": keys.token_file("worker"),
            "registry_address": cluster.addresses["registry"],
            "cache_address": cluster.addresses["cache"],
            "quota_address": cluster.addresses["quota"],
            "explanation": explanation,
            "renew_seconds": 0.2,
            "drain_seconds": 1,
            "attempt_grace_seconds": 0,
            "collect_seconds": 0.1,
            **settings,
        }
        return Config(**values)

    return config


@pytest.fixture
def start_worker(worker_config: Callable[..., Config]) -> StartWorker:
    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[Running]:
        async with running("worker", worker_config(**settings), compose) as worker:
            yield worker

    return start
