"""What one caller can take up: metadata and places; and who takes up nothing at all."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.runtime import interceptors
from tests.runtime.test_server import NAME, Tricky, serving
from tests.suite import Keys, metadata

ADMIT, CHECK = f"/{NAME}/Admit", "/grpc.health.v1.Health/Check"


class Silence:
    """Requests that never come, until the test lets go."""

    def __init__(self) -> None:
        self._over = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._over.wait()
        return
        yield b""

    def end(self) -> None:
        self._over.set()


def raw(channel: grpc.aio.Channel, kind: str, path: str) -> Any:
    """A method called with bytes, as what it is not."""
    return getattr(channel, kind)(path)


async def code_of(call: Any) -> grpc.StatusCode:
    return grpc.StatusCode(await call.code())


async def test_more_calls_at_a_time_than_agreed_are_refused(keys: Keys) -> None:
    bearer = metadata(keys.token("gateway"))
    async with (
        serving(keys, Tricky(), max_concurrent_rpcs=2) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        stub = QuotaServiceStub(channel)
        calls = [
            stub.GetQuotaStatus(pb.GetQuotaStatusRequest(), metadata=bearer, timeout=60)
            for _ in range(3)
        ]
        ended, waiting = await asyncio.wait(
            [asyncio.create_task(code_of(call)) for call in calls],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert [task.result() for task in ended] == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert len(waiting) == 2
        for call in calls:
            call.cancel()
        await asyncio.wait(waiting)


@pytest.mark.parametrize(
    "header", [None, "Bearer nonsense", "of another scope"], ids=["none", "bad", "not for this"]
)
async def test_who_may_not_call_takes_up_no_place_by_sending_nothing(
    keys: Keys, header: str | None
) -> None:
    """A unary call of which only the headers come is refused by them."""
    if header == "of another scope":
        header = f"Bearer {keys.token('registry')}"
    silence = Silence()
    async with (
        serving(keys, Tricky(), max_concurrent_rpcs=2) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        strangers = [
            raw(channel, "stream_unary", ADMIT)(
                silence, metadata=[("authorization", header)] if header else None, timeout=60
            )
            for _ in range(2)
        ]
        codes = {await code_of(stranger) for stranger in strangers}
        await QuotaServiceStub(channel).Admit(
            pb.AdmitRequest(), metadata=metadata(keys.token("gateway")), timeout=60
        )
        silence.end()

    assert codes <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}


async def test_a_refusal_is_heard_though_the_message_is_still_on_its_way(keys: Keys) -> None:
    large = pb.AdmitRequest(user_id="x" * 3_900_000)
    async with (
        serving(keys, Tricky()) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        for _ in range(20):
            call = QuotaServiceStub(channel).Admit(large, timeout=60)
            assert await code_of(call) == grpc.StatusCode.UNAUTHENTICATED


async def test_a_probe_that_asks_nothing_is_let_go(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interceptors, "OPEN_SECONDS", 0.05)
    silence = Silence()
    async with (
        serving(keys, Tricky()) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        silent = raw(channel, "stream_unary", CHECK)(silence, timeout=60)
        garbage = raw(channel, "unary_unary", CHECK)(b"\xff\xff", timeout=60)
        assert await silent.details() == "nothing was asked"
        assert await code_of(garbage) == grpc.StatusCode.INVALID_ARGUMENT
        silence.end()


async def test_watching_our_health_for_long_needs_a_token(keys: Keys) -> None:
    request = health_pb2.HealthCheckRequest()
    async with (
        serving(keys, Tricky()) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        stranger = health.Watch(request, timeout=60)
        assert await code_of(stranger) == grpc.StatusCode.UNAUTHENTICATED
        watching = health.Watch(request, metadata=metadata(keys.token("worker")), timeout=60)
        first = await watching.read()
        watching.cancel()

    assert first.status == health_pb2.HealthCheckResponse.SERVING


async def test_too_much_metadata_is_refused_before_it_is_looked_at(keys: Keys) -> None:
    much = metadata(keys.token("gateway"))
    much.add("x-padding", "p" * 40_000)
    async with (
        serving(keys, Tricky()) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        call = QuotaServiceStub(channel).Admit(pb.AdmitRequest(), metadata=much, timeout=60)
        assert await code_of(call) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "metadata" in await call.details()


async def test_health_answers_though_reflection_is_off(keys: Keys) -> None:
    async with (
        serving(keys, Tricky(), reflection=False) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        answer = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(), timeout=60
        )
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
