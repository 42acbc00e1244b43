"""A Cache that can be stopped anywhere, its Quota behind a wire that can be cut, and the truth."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.cache.v1.jobs_pb2_grpc import JobServiceStub

from services.cache.__main__ import compose
from services.cache.config import Config
from services.doctor.examine import find_violations
from services.runtime.server import running
from tests.cache.conftest import House, Worker
from tests.protocol import failpoints as failpoints_module
from tests.protocol.edge import QuotaEdge, quota_edge
from tests.protocol.failpoints import Failpoints
from tests.suite import Keys, running_suite

# Joining costs something here, so that there is something to give back to everybody.
QUOTA = {"price_generated": 3, "price_joined": 1, "hard_limit": 100_000, "daily_limit": 100_000}
# Duties that would repair things by themselves sleep: tests decide when recovery comes.
ASLEEP = {"sweep_seconds": 3600, "poll_seconds": 0.05, "backoff_seconds": (0,)}
QUICK_HOLD = {"hold_seconds": 0.05, "backoff_jitter_seconds": 0}
# For who comes to clear up: everything is old at once.
SWEEPING = {"sweep_seconds": 0.05, "intent_seconds": 0.001}
RETRY_SECONDS = 20
# Work that somebody may still take, and what is over when all recovery has run.
LEFT = """
SELECT EXISTS (
    SELECT FROM cache.generations WHERE status = 'generating' AND attempts - released < 3
)
"""
AT_REST = """
SELECT NOT EXISTS (SELECT FROM cache.generations WHERE status = 'generating')
   AND NOT EXISTS (SELECT FROM cache.requests WHERE state IN ('intent', 'waiting'))
   AND NOT EXISTS (SELECT FROM cache.outbox)
"""


class Caller:
    """A gateway that retries with the same request_id until it is answered."""

    def __init__(self, stub: CacheServiceStub, bearer: grpc.aio.Metadata) -> None:
        self._stub = stub
        self._bearer = bearer

    def ask(self, user: str, pdf_hash: str, request_id: str) -> Any:
        return self._stub.ExplainPage(
            cache_pb2.ExplainPageRequest(
                user_id=user, pdf_hash=pdf_hash, page=1, locale="en", request_id=request_id
            ),
            metadata=self._bearer,
            timeout=RETRY_SECONDS,
        )

    async def insist(
        self, user: str, pdf_hash: str, request_id: str
    ) -> cache_pb2.ExplainPageResponse:
        async with asyncio.timeout(RETRY_SECONDS):
            while True:
                try:
                    answer: cache_pb2.ExplainPageResponse = await self.ask(
                        user, pdf_hash, request_id
                    )
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    await asyncio.sleep(0.02)
                else:
                    return answer


class Ground:
    """Where crashes are tried: the suite, one Cache under test, and what must always hold."""

    def __init__(
        self,
        house: House,
        databases: Mapping[str, str],
        failpoints: Failpoints,
        edge: QuotaEdge,
    ) -> None:
        self.house = house
        self.failpoints = failpoints
        self.edge = edge
        self._databases = databases
        self.caller: Caller
        self.worker: Worker

    @asynccontextmanager
    async def replica(self, **settings: Any) -> AsyncIterator[grpc.aio.Channel]:
        """A Cache process of its own, as far as anybody can tell."""
        suite = self.house.suite
        config = Config(
            database_url=self._databases["cache"],
            verify_key_file=suite.keys.verify_key_file,
            token_file=suite.keys.token_file("cache"),
            registry_address=suite.addresses["registry"],
            quota_address=self.edge.address,
            drain_seconds=0,
            **{**ASLEEP, **QUICK_HOLD, **settings},
        )
        async with (
            running("cache", config, compose) as here,
            grpc.aio.insecure_channel(here.address) as channel,
        ):
            yield channel

    async def crash(self, call: Any) -> bool:
        """Wait until the failpoint has stopped the call; False when it was never reached."""
        answering = asyncio.ensure_future(_outcome(call))
        stopped = asyncio.ensure_future(self.failpoints.fired.wait())
        await asyncio.wait({answering, stopped}, return_when=asyncio.FIRST_COMPLETED)
        self.failpoints.disarm()
        if not self.failpoints.fired.is_set():
            stopped.cancel()
            error = await answering
            if error is not None:
                raise error
            return False
        call.cancel()
        await answering
        return True

    async def clear_up(self) -> None:
        """What time brings: leases run out, intents grow old, sweep and relay run to the end."""
        admin = self.house.admin
        await admin.execute(
            "UPDATE cache.generations SET leased_until = now() - interval '1 second'"
            " WHERE leased_until > now()"
        )
        async with self.replica(**SWEEPING) as channel:
            worker = Worker(self.house.suite, "cleaner")
            worker.stub = JobServiceStub(channel)
            while await admin.fetchval(LEFT):
                await worker.complete(await worker.lease())
            await self.house.until(AT_REST)

    async def until_stopped_or(self, question: str) -> bool:
        """Wait until the failpoint has stopped somebody, or the database says yes."""
        stopped = asyncio.ensure_future(self.failpoints.fired.wait())
        settled = asyncio.ensure_future(self.house.until(question))
        await asyncio.wait({stopped, settled}, return_when=asyncio.FIRST_COMPLETED)
        for waiting in (stopped, settled):
            waiting.cancel()
        await asyncio.gather(stopped, settled, return_exceptions=True)
        return self.failpoints.fired.is_set()

    async def assert_sound(self) -> None:
        assert await find_violations(self.house.admin) == {}

    async def document(self, *owners: str) -> str:
        return await self.house.document(*owners)

    async def ledger(self, request_id: str) -> tuple[str, int] | None:
        """What Quota knows about a request: how it stands and what it costs now."""
        row = await self.house.admin.fetchrow(
            "SELECT status, quota_units FROM quota.explain_requests WHERE request_id = $1",
            request_id,
        )
        return (row["status"], row["quota_units"]) if row else None


async def _outcome(call: Any) -> BaseException | None:
    try:
        await call
    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
        return error
    return None


@pytest.fixture
def failpoints(monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    return failpoints_module.install(monkeypatch)


@pytest.fixture
async def ground(
    admin_url: str,
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    failpoints: Failpoints,
) -> AsyncIterator[Ground]:
    async with (
        running_suite(
            databases, keys, tmp_path, with_worker=False, quota=QUOTA, cache=ASLEEP
        ) as suite,
        quota_edge(suite.addresses["quota"]) as edge,
    ):
        admin = await asyncpg.connect(admin_url)
        house = House(suite, admin)
        ground = Ground(house, databases, failpoints, edge)
        async with ground.replica() as channel:
            ground.caller = Caller(CacheServiceStub(channel), suite.bearer())
            ground.worker = Worker(suite)
            ground.worker.stub = JobServiceStub(channel)
            yield ground
        await ground.clear_up()
        await ground.assert_sound()
        await admin.close()


def new_id() -> str:
    return str(uuid4())
