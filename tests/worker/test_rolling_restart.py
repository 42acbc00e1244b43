"""Three worker processes, restarted one after another while pages keep coming."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.worker.v1 import worker_pb2
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from services.local.free_ports import free_ports
from services.local.processes import is_serving
from services.local.tether import tethered
from tests.fake_openai import FakeOpenAI
from tests.suite import Keys, Suite, lecture

WORKERS, PAGES_BETWEEN = 3, 6
GENERATING = cache_pb2.GENERATION_STATUS_GENERATING


class WorkerProcess:
    """One worker on a port of its own, which it keeps over restarts."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.address = f"127.0.0.1:{free_ports().port('worker')}"
        self._environment = environment | {"GLOSSA_PORT": self.address.rpartition(":")[2]}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        command = [sys.executable, "-P", "-m", "services.worker"]
        self._process = await asyncio.create_subprocess_exec(
            *tethered(command, on_parent_death=signal.SIGKILL),
            env=self._environment,
            stdout=asyncio.subprocess.DEVNULL,
        )
        async with grpc.aio.insecure_channel(self.address) as channel:
            while not await is_serving(channel):
                pass

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.terminate()
        assert await self._process.wait() == 0


@asynccontextmanager
async def three_workers(environment: dict[str, str]) -> AsyncIterator[list[WorkerProcess]]:
    async with AsyncExitStack() as stack:
        workers = [WorkerProcess(environment) for _ in range(WORKERS)]
        for worker in workers:
            await worker.start()
            stack.push_async_callback(worker.stop)
        yield workers


@pytest.fixture
def environment(
    cluster: Suite, databases: Mapping[str, str], keys: Keys, model: FakeOpenAI
) -> dict[str, str]:
    return {
        **os.environ,
        "GLOSSA_DATABASE_URL": databases["worker"],
        "GLOSSA_VERIFY_KEY_FILE": str(keys.verify_key_file),
        "GLOSSA_TOKEN_FILE": str(keys.token_file("worker")),
        "GLOSSA_REGISTRY_ADDRESS": cluster.addresses["registry"],
        "GLOSSA_CACHE_ADDRESS": cluster.addresses["cache"],
        "GLOSSA_QUOTA_ADDRESS": cluster.addresses["quota"],
        "GLOSSA_RENEW_SECONDS": "0.3",
        "GLOSSA_CONCURRENCY": "2",
        "GLOSSA_ATTEMPT_GRACE_SECONDS": "0.2",
        "OPENAI_API_KEY": "secret",
        "OPENAI_BASE_URL": model.url,
    }


class Watcher:
    """Follows a page at whichever worker answers; keeps every number it was told."""

    def __init__(self, suite: Suite, channels: list[grpc.aio.Channel], generation_id: str) -> None:
        self._stubs: list[WorkerServiceStub] = [WorkerServiceStub(one) for one in channels]
        self._bearer = suite.bearer("admin")
        self._request = worker_pb2.WatchGenerationRequest(generation_id=generation_id)
        self.numbers: list[int] = []

    async def follow(self) -> None:
        turn = 0
        while True:
            call = self._stubs[turn % WORKERS].WatchGeneration(self._request, metadata=self._bearer)
            try:
                async for message in call:
                    self._hear(message)
                    if message.status != GENERATING:
                        assert message.status == cache_pb2.GENERATION_STATUS_READY
                        return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                turn += 1

    def _hear(self, message: worker_pb2.WatchGenerationResponse) -> None:
        if not self.numbers or message.sequence != self.numbers[-1]:
            self.numbers.append(message.sequence)
        self._request.after_sequence, self._request.resume = message.sequence, True


@pytest.mark.timeout(240)
async def test_a_rolling_restart_burns_no_attempt_and_loses_no_event(
    cluster: Suite, model: FakeOpenAI, environment: dict[str, str], admin_url: str
) -> None:
    pages = [f"Page {number} is about entropy." for number in range(60)]
    pdf_hash = (await cluster.upload("ada", lecture(*pages))).document.pdf_hash
    asked: list[str] = []
    following: list[asyncio.Task[None]] = []
    watchers: list[Watcher] = []

    async with AsyncExitStack() as stack:
        workers = await stack.enter_async_context(three_workers(environment))
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(worker.address))
            for worker in workers
        ]

        async def ask_for_more(count: int) -> None:
            for _ in range(count):
                answer = await cluster.explain("ada", pdf_hash, page=len(asked) + 1)
                asked.append(answer.generation_id)
                watchers.append(Watcher(cluster, channels, answer.generation_id))
                following.append(asyncio.create_task(watchers[-1].follow()))

        for worker in workers:
            # Every hand is full when it is told to go, and more pages come while it is away.
            model.gate.clear()
            held = model.calls + 2 * WORKERS
            await ask_for_more(PAGES_BETWEEN)
            await model.wait_for_calls(held)
            await worker.stop()
            await ask_for_more(PAGES_BETWEEN)
            model.gate.set()
            await worker.start()
        await asyncio.gather(*following)

    await assert_nothing_burnt(admin_url, asked)
    for watcher in watchers:
        first = watcher.numbers[0]
        assert watcher.numbers == list(range(first, first + len(watcher.numbers)))


async def assert_nothing_burnt(admin_url: str, asked: list[str]) -> None:
    connection = await asyncpg.connect(admin_url)
    try:
        rows = await connection.fetch(
            "SELECT status, attempts - released AS tried, failures, released FROM cache.generations"
        )
        gaps = await connection.fetch(
            "SELECT generation_id FROM worker.generation_events GROUP BY generation_id"
            " HAVING max(sequence) <> count(*) OR count(*) FILTER (WHERE status = 'ready') <> 1"
        )
    finally:
        await connection.close()
    assert len(rows) == len(asked)
    assert {(row["status"], row["tried"], row["failures"]) for row in rows} == {("ready", 1, "[]")}
    # Some were given back: the restarts did meet work under way.
    assert sum(row["released"] for row in rows) >= WORKERS
    assert gaps == []
