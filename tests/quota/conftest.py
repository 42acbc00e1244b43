"""A Quota service alone, spoken to as the Cache does."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from glossa.registry.v1 import registry_pb2

from services.doctor.examine import find_violations
from services.local.free_ports import free_ports
from services.local.processes import is_serving
from services.local.tether import tethered
from services.quota.__main__ import compose
from services.quota.config import Config
from services.runtime.database import Database, open_database
from services.runtime.server import running
from tests.suite import Keys, metadata

HASH = "a" * 64

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:  # not generic at run time
    Connection = asyncpg.Connection


class Ledger:
    """The Quota service, and what its tables say."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        address: str,
        url: str,
        connection: Connection,
        keys: Keys,
    ) -> None:
        self.stub = QuotaServiceStub(channel)
        self.address = address
        self.url = url
        self.connection = connection
        self.keys = keys
        self.bearer = metadata(keys.token("cache"))

    async def admit(self, request: pb.AdmitRequest) -> pb.AdmitResponse:
        return await self.stub.Admit(request, metadata=self.bearer)

    async def admit_many(self, *requests: pb.AdmitRequest) -> list[pb.AdmitResponse]:
        response = await self.stub.AdmitMany(
            pb.AdmitManyRequest(requests=requests), metadata=self.bearer
        )
        return list(response.responses)

    async def refund(self, *items: pb.RefundRequest.Item) -> list[pb.RefundResponse.Item]:
        response = await self.stub.Refund(pb.RefundRequest(items=items), metadata=self.bearer)
        return list(response.items)

    async def record(self, *operations: pb.Operation) -> list[int]:
        response = await self.stub.RecordOperations(
            pb.RecordOperationsRequest(operations=operations),
            metadata=metadata(self.keys.token("worker")),
        )
        return list(response.cost_nanodollars)

    async def share(self, user: str, choice: bool) -> pb.Preferences:
        response = await self.stub.UpdatePreferences(
            pb.UpdatePreferencesRequest(user_id=user, share_to_cache=choice),
            metadata=metadata(self.keys.user_token(user)),
        )
        return response.preferences

    async def costs(self, user: str = "", **span: Any) -> pb.GetUserCostsResponse:
        return await self.stub.GetUserCosts(
            pb.GetUserCostsRequest(user_id=user, **span),
            metadata=metadata(self.keys.token("admin")),
        )

    async def entries(self, user: str, **page: Any) -> pb.ListLedgerResponse:
        return await self.stub.ListLedger(
            pb.ListLedgerRequest(user_id=user, **page),
            metadata=metadata(self.keys.user_token(user)),
        )

    async def balance(self, user: str) -> int:
        status = await self.stub.GetQuotaStatus(
            pb.GetQuotaStatusRequest(user_id=user), metadata=self.bearer
        )
        return status.remaining_units

    async def drift(self) -> list[str]:
        """What does not hold though it always should: always nothing."""
        return list(await find_violations(self.connection, only={"quota"}))


def ask(
    user: str = "alice", *, outcome: "pb.Outcome.ValueType" = pb.OUTCOME_GENERATED, **more: Any
) -> pb.AdmitRequest:
    context = page_of(more.pop("page", 1), more.pop("pdf_hash", HASH))
    fields = {"request_id": str(uuid4()), "endpoint": "explain_page", **more}
    return pb.AdmitRequest(user_id=user, outcome=outcome, page=context, **fields)


def page_of(page: int, pdf_hash: str = HASH) -> pb.PageContext:
    return pb.PageContext(
        pdf_hash=pdf_hash,
        page=page,
        locale="en",
        effective_mode=registry_pb2.EFFECTIVE_MODE_TEXT_ONLY,
    )


def operation_of(*, page: int = 1, pdf_hash: str = HASH, **more: Any) -> pb.Operation:
    """A call that cost 1.2 million nano-dollars: 1,000 tokens in and 500 out of gpt-4.1-mini."""
    fields = {
        "operation_id": str(uuid4()),
        "endpoint": "explain_page",
        "model": "gpt-4.1-mini",
        "input_tokens": 1000,
        "output_tokens": 500,
        "outcome": "ok",
        "attempt": 1,
        **more,
    }
    return pb.Operation(page=page_of(page, pdf_hash), **fields)


def refund_of(
    request: pb.AdmitRequest,
    reason: "pb.RefundReason.ValueType" = pb.REFUND_REASON_GENERATION_FAILED,
    served_as: "pb.Outcome.ValueType" = pb.OUTCOME_UNSPECIFIED,
) -> pb.RefundRequest.Item:
    return pb.RefundRequest.Item(
        request_id=request.request_id, user_id=request.user_id, reason=reason, served_as=served_as
    )


@asynccontextmanager
async def quota_service(
    databases: Mapping[str, str], keys: Keys, **settings: Any
) -> AsyncIterator[Ledger]:
    # Patient, since test machines are shared; who tests impatience says so.
    settings = {"answer_within_seconds": 30, **settings}
    config = Config(
        database_url=databases["quota"], verify_key_file=keys.verify_key_file, **settings
    )
    connection = await asyncpg.connect(databases["quota"])
    async with (
        running("quota", config, compose) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        yield Ledger(channel, here.address, databases["quota"], connection, keys)
    await connection.close()


@asynccontextmanager
async def quota_process(url: str, keys: Keys) -> AsyncIterator[tuple[int, grpc.aio.Channel]]:
    """A real Quota process; its pid and a channel to it."""
    port = free_ports().port("quota")
    process = await asyncio.create_subprocess_exec(
        *tethered([sys.executable, "-P", "-m", "services.quota"], on_parent_death=signal.SIGKILL),
        env={
            **os.environ,
            "GLOSSA_DATABASE_URL": url,
            "GLOSSA_VERIFY_KEY_FILE": str(keys.verify_key_file),
            "GLOSSA_PORT": str(port),
            "GLOSSA_ANSWER_WITHIN_SECONDS": "60",
        },
        stdout=asyncio.subprocess.DEVNULL,
    )
    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.use_local_subchannel_pool", 1)]
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            async with asyncio.timeout(60):
                while not await is_serving(channel):
                    assert process.returncode is None, "it does not start"
            yield process.pid, channel
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.fixture
async def database(databases: Mapping[str, str]) -> AsyncIterator[Database]:
    async with open_database(databases["quota"], application_name="test") as database:
        yield database


@pytest.fixture
async def ledger(databases: Mapping[str, str], keys: Keys) -> AsyncIterator[Ledger]:
    async with quota_service(databases, keys) as ledger:
        yield ledger
