"""Quota killed between its commit and its answer: the retry finds the charge."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import grpc
from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub

from services.doctor.examine import find_violations
from tests.quota.conftest import ask, quota_process
from tests.suite import Keys, metadata


class Wire:
    """Stands between Quota and Postgres, and can keep the server's answers to itself."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._passing = asyncio.Event()
        self._passing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    def withhold_answers(self) -> None:
        self._passing.clear()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["Wire"]:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        credentials = self._target.netloc.rpartition("@")[0]
        self.url = urlunsplit(self._target._replace(netloc=f"{credentials}@127.0.0.1:{port}"))
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = self._target.hostname, self._target.port
        from_server, to_server = await asyncio.open_connection(host, port)
        for task in (
            asyncio.create_task(self._copy(reader, to_server, asks=True)),
            asyncio.create_task(self._copy(from_server, writer, asks=False)),
        ):
            self._tasks.add(task)

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, asks: bool
    ) -> None:
        try:
            with suppress(ConnectionError):
                while content := await source.read(65536):
                    if not asks:
                        await self._passing.wait()
                    target.write(content)
                    await target.drain()
        finally:
            target.close()


async def test_killed_after_the_commit_and_before_the_answer_it_has_charged_once(
    databases: Mapping[str, str], keys: Keys
) -> None:
    request, bearer = ask(), metadata(keys.token("cache"))
    ledger = await asyncpg.connect(databases["quota"])
    async with (
        Wire(databases["quota"]).listening() as wire,
        quota_process(wire.url, keys) as (pid, channel),
    ):
        stub = QuotaServiceStub(channel)
        # So that the connection is there and every statement known.
        await stub.Admit(ask("bob"), metadata=bearer)
        wire.withhold_answers()
        call = asyncio.ensure_future(_admit(stub, request, bearer))
        async with asyncio.timeout(60):
            while not await ledger.fetchval(COMMITTED, request.request_id):
                assert not call.done(), "nobody is answered"
                await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        assert await call is grpc.StatusCode.UNAVAILABLE

    async with quota_process(databases["quota"], keys) as (_, channel):
        retry = await QuotaServiceStub(channel).Admit(request, metadata=bearer)

    assert retry.decision == pb.DECISION_REPLAYED
    assert (retry.receipt.units, retry.receipt.remaining_units) == (1, 999)
    assert await find_violations(ledger, only={"quota"}) == {}
    await ledger.close()


COMMITTED = "SELECT count(*) FROM quota.explain_requests WHERE request_id = $1"


async def _admit(
    stub: QuotaServiceStub, request: pb.AdmitRequest, bearer: grpc.aio.Metadata
) -> grpc.StatusCode:
    try:
        await stub.Admit(request, metadata=bearer)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
