"""A database that is slow or frozen: paid work is refused at once and comes back by itself."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub

from services.local.bootstrap import bootstrap, ensure_database
from services.local.layout import SERVICES
from services.local.postgres import EmbeddedPostgres
from services.quota.gate import Gate
from services.quota.metrics import REFUSED_CALLS
from services.runtime.auth import TokenFile
from services.runtime.channel import open_channel
from services.runtime.errors import DependencyDown
from services.runtime.status import from_call
from tests.quota.conftest import Ledger, ask, quota_service
from tests.suite import Keys, metadata

QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
IMPATIENT = {"answer_within_seconds": 0.3}
SHORT = timedelta(milliseconds=300)


def refused(why: str) -> float:
    counted: float = REFUSED_CALLS.labels(why)._value.get()
    return counted


@asynccontextmanager
async def locked(ledger: Ledger, table: str) -> AsyncIterator[None]:
    """Whoever needs the table waits as long as the block lasts."""
    async with ledger.connection.transaction():
        await ledger.connection.execute(f"LOCK quota.{table} IN ACCESS EXCLUSIVE MODE")
        yield


async def refusal_of(call: Any) -> Any:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call
    return from_call(refusal.value)


async def until_admitted(ledger: Ledger) -> pb.AdmitResponse:
    async with asyncio.timeout(60):
        while True:
            try:
                return await ledger.admit(ask())
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)


async def test_who_meets_a_slow_database_is_told_to_come_again(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with quota_service(databases, keys, **IMPATIENT) as ledger:
        await ledger.admit(ask())
        async with locked(ledger, "accounts"):
            slow = refused("slow")
            error = await refusal_of(ledger.admit(ask()))

            assert (error.code, error.reason) == ("UNAVAILABLE", "DATABASE_UNAVAILABLE")
            assert error.retry_after is not None
            assert refused("slow") == slow + 1, "the gate, not a time-out of the driver"
        assert (await until_admitted(ledger)).decision == pb.DECISION_ADMITTED
        assert await ledger.drift() == []


async def test_after_failures_in_a_row_the_database_is_left_alone(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with quota_service(databases, keys, **IMPATIENT) as ledger:
        await ledger.admit(ask())
        async with locked(ledger, "accounts"):
            for _ in range(3):
                await refusal_of(ledger.admit(ask()))
            slow, opened = refused("slow"), refused("open")
            await refusal_of(ledger.refund(REFUND))

            assert (refused("slow"), refused("open")) == (slow, opened + 1)
        assert (await until_admitted(ledger)).decision == pb.DECISION_ADMITTED


REFUND = pb.RefundRequest.Item(
    request_id="00000000-0000-4000-8000-000000000000",
    user_id="alice",
    reason=pb.REFUND_REASON_GOODWILL,
)


async def test_status_says_so_instead_of_failing(databases: Mapping[str, str], keys: Keys) -> None:
    async with quota_service(databases, keys, **IMPATIENT) as ledger:
        request = pb.GetQuotaStatusRequest(user_id="alice")
        async with locked(ledger, "accounts"):
            status = await ledger.stub.GetQuotaStatus(request, metadata=ledger.bearer)

            assert status.degraded
            assert status.HasField("retry_after")
            assert not status.tiers
        await until_admitted(ledger)
        healthy = await ledger.stub.GetQuotaStatus(request, metadata=ledger.bearer)
        assert not healthy.degraded


async def test_only_so_many_calls_wait(databases: Mapping[str, str], keys: Keys) -> None:
    async with quota_service(databases, keys, max_waiting_calls=3) as ledger:
        await ledger.admit(ask())
        async with locked(ledger, "accounts"):
            calls = [asyncio.ensure_future(ledger.admit(ask())) for _ in range(8)]
            done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            while len(waiting) > 3:
                more, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                done |= more
            reasons = {(await refusal_of(call)).reason for call in done}
            assert (len(done), reasons) == (5, {"OVERLOADED"})
        answers = await asyncio.gather(*waiting)
        assert {answer.decision for answer in answers} == {pb.DECISION_ADMITTED}


async def test_a_probe_whose_caller_goes_away_does_not_close_the_gate_for_good() -> None:
    gate = Gate(answer_within=SHORT, max_waiting=10)
    gate._breaker.pause = 0 * SHORT
    for _ in range(3):
        with pytest.raises(DependencyDown):
            await gate.through(away())
    hanging = asyncio.ensure_future(gate.through(asyncio.Event().wait()))
    await asyncio.sleep(0)
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)

    assert await gate.through(asyncio.sleep(0, "through")) == "through"


async def away() -> None:
    raise DependencyDown("away", reason="DATABASE_UNAVAILABLE")


@pytest.fixture(scope="module")
async def own_server() -> AsyncIterator[tuple[EmbeddedPostgres, Mapping[str, str]]]:
    """A server of this file's own, to be frozen."""
    folder = Path(tempfile.mkdtemp(prefix="glossa-test-"))
    async with EmbeddedPostgres(folder, options=QUICK) as postgres:
        url = await ensure_database(postgres.url, "glossa")
        yield postgres, await bootstrap(url, dict.fromkeys(SERVICES, "test"))
    shutil.rmtree(folder)


@contextmanager
def frozen(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Every process of the server stands still; connections stay open and say nothing."""
    assert postgres._process is not None
    server = postgres._process.pid
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    pids = [server, *map(int, children)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


async def test_a_frozen_database_is_noticed_once_and_found_again(
    own_server: tuple[EmbeddedPostgres, Mapping[str, str]], keys: Keys
) -> None:
    postgres, databases = own_server
    async with quota_service(databases, keys, **IMPATIENT) as ledger:
        await ledger.admit(ask())
        with frozen(postgres):
            answers = await asyncio.gather(
                *(ledger.admit(ask()) for _ in range(20)), return_exceptions=True
            )
            codes = {one.code() for one in answers if isinstance(one, grpc.aio.AioRpcError)}
            opened = refused("open")
            error = await refusal_of(ledger.admit(ask()))

            assert (len(answers), codes) == (20, {grpc.StatusCode.UNAVAILABLE})
            assert error.reason == "DATABASE_UNAVAILABLE"
            assert refused("open") == opened + 1
        assert (await until_admitted(ledger)).decision == pb.DECISION_ADMITTED
        assert await ledger.drift() == []


async def test_callers_do_not_try_a_refusal_again_by_themselves(
    databases: Mapping[str, str], keys: Keys
) -> None:
    """gRPC's own retries would make three waits out of one."""
    async with quota_service(databases, keys, **IMPATIENT) as ledger:
        await ledger.admit(ask())
        token = TokenFile(keys.token_file("cache"))
        async with (
            open_channel(ledger.address, token) as channel,
            locked(ledger, "accounts"),
        ):
            slow = refused("slow")
            await refusal_of(QuotaServiceStub(channel).Admit(ask()))

            assert refused("slow") == slow + 1


async def test_reads_of_the_ledger_are_refused_with_a_reason(
    databases: Mapping[str, str], keys: Keys
) -> None:
    async with (
        quota_service(databases, keys, **IMPATIENT) as ledger,
        locked(ledger, "ledger_entries"),
    ):
        call = ledger.stub.ListLedger(
            pb.ListLedgerRequest(user_id="alice"), metadata=metadata(keys.user_token("alice"))
        )
        assert (await refusal_of(call)).reason == "DATABASE_UNAVAILABLE"
