"""What happens around every call: token, scopes, clean errors, ids, health, reflection, drain."""

import asyncio
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from glossa.quota.v1.quota_pb2_grpc import add_QuotaServiceServicer_to_server as add
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.runtime import request
from services.runtime.auth import TokenFile, allow
from services.runtime.channel import calling, open_channel
from services.runtime.errors import DependencyDown, InvalidInput, LimitReached, RelayedError
from services.runtime.server import CannotStart, Parts, Running, Servicer, running
from services.runtime.settings import ServiceSettings
from tests.suite import Keys, Suite, metadata

NAME = "glossa.quota.v1.QuotaService"


class Spent(LimitReached):
    """Nothing left."""

    reason = "SPENT"
    spent_quota = "user:alice"


@allow("gateway")
async def unused(message: Any, context: Any) -> None:
    raise NotImplementedError


class Tricky:
    """A handler whose methods go wrong in every way."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float | None]] = []
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """The rest of the contract, which nobody calls here."""
        return unused

    @allow("gateway")
    async def Admit(self, message: pb.AdmitRequest, context: Any) -> pb.AdmitResponse:
        self.seen.append((request.request_id.get(), request.seconds_left()))
        return pb.AdmitResponse()

    @allow("gateway")
    async def AdmitMany(self, message: pb.AdmitManyRequest, context: Any) -> pb.AdmitManyResponse:
        raise InvalidInput("requests must not be empty", field="requests")

    @allow("gateway")
    async def Refund(self, message: pb.RefundRequest, context: Any) -> pb.RefundResponse:
        raise ZeroDivisionError("the secret is 42")

    @allow("gateway")
    async def GetQuotaStatus(
        self, message: pb.GetQuotaStatusRequest, context: Any
    ) -> pb.GetQuotaStatusResponse:
        if message.user_id == "spent":
            raise Spent("no units left")
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError


@asynccontextmanager
async def serving(keys: Keys, handler: Any, **settings: Any) -> AsyncIterator[Running]:
    @asynccontextmanager
    async def compose(_: ServiceSettings) -> AsyncIterator[Parts]:
        yield Parts(servicers=[Servicer(name=NAME, handler=handler, add=add)])

    config = ServiceSettings(
        database_url="postgresql://unused", verify_key_file=keys.verify_key_file, **settings
    )
    async with running("tricky", config, compose) as here:
        yield here


@asynccontextmanager
async def client(keys: Keys, address: str) -> AsyncIterator[QuotaServiceStub]:
    """A client as our own services are: with token, deadline and retries."""
    path = keys.folder / "gateway.jwt"
    path.write_text(keys.token("gateway"))
    async with open_channel(address, TokenFile(path), deadline_seconds=5) as channel:
        yield QuotaServiceStub(channel)


async def test_an_unexpected_error_tells_nothing(keys: Keys) -> None:
    async with serving(keys, Tricky()) as here, client(keys, here.address) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Refund(pb.RefundRequest())

    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error"


async def test_a_refusal_keeps_its_details_through_every_hop(keys: Keys) -> None:
    async with serving(keys, Tricky()) as here, client(keys, here.address) as stub:
        with pytest.raises(RelayedError) as caught, calling("quota"):
            await stub.AdmitMany(pb.AdmitManyRequest())
        with pytest.raises(RelayedError) as spent, calling("quota"):
            await stub.GetQuotaStatus(pb.GetQuotaStatusRequest(user_id="spent"))

    error = caught.value
    assert (error.code, error.reason, error.field) == (
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        "requests",
    )
    assert (spent.value.reason, spent.value.retry_after) == ("SPENT", None)


async def test_a_call_without_an_answer_ends_at_its_deadline_on_both_sides(keys: Keys) -> None:
    handler = Tricky()
    async with serving(keys, handler) as here, client(keys, here.address) as stub:
        with pytest.raises(DependencyDown) as caught, calling("quota"):
            await stub.GetQuotaStatus(pb.GetQuotaStatusRequest(), timeout=0.2)
        await handler.cancelled.wait()

    assert caught.value.reason == "QUOTA_UNAVAILABLE"


async def test_request_id_and_deadline_travel_with_the_call(keys: Keys) -> None:
    handler = Tricky()
    async with serving(keys, handler) as here, client(keys, here.address) as stub:

        async def nested() -> None:
            request.request_id.set("abc-123")
            request.set_deadline(1.0)
            await stub.Admit(pb.AdmitRequest())

        await asyncio.create_task(nested())
        await asyncio.create_task(_plain(stub))
        await stub.Admit(pb.AdmitRequest(), metadata=((request.REQUEST_ID_HEADER, "given"),))

    (first_id, first_left), (second_id, second_left), (given_id, _) = handler.seen
    assert given_id == "given"
    assert first_id == "abc-123"
    assert second_id not in {"", "abc-123"}
    # gRPC rounds deadlines up a little.
    assert 0 < (first_left or 0) < 1.5 < (second_left or 0) < 5.5


async def _plain(stub: QuotaServiceStub) -> None:
    await stub.Admit(pb.AdmitRequest())


async def test_an_rpc_that_does_not_say_who_may_call_it_stops_the_start(keys: Keys) -> None:
    class Forgetful(Tricky):
        async def Admit(self, message: pb.AdmitRequest, context: Any) -> pb.AdmitResponse:
            return pb.AdmitResponse()

    with pytest.raises(CannotStart, match="Admit does not say who may call it"):
        async with serving(keys, Forgetful()):
            pass


async def test_a_taken_port_is_said_in_one_sentence(keys: Keys) -> None:
    async with serving(keys, Tricky()) as here:
        port = int(here.address.rpartition(":")[2])
        with pytest.raises(CannotStart, match=f"port {port} on 127.0.0.1 is taken"):
            async with serving(keys, Tricky(), port=port):
                pass


async def test_health_is_open_and_reflection_needs_a_token(keys: Keys) -> None:
    async with (
        serving(keys, Tricky()) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=NAME))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _list_services(channel, None)
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert NAME in await _list_services(channel, metadata(keys.token("worker")))


async def test_reflection_can_be_switched_off(keys: Keys) -> None:
    async with (
        serving(keys, Tricky(), reflection=False) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _list_services(channel, metadata(keys.token("admin")))
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def _list_services(channel: grpc.aio.Channel, bearer: Any) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    question = reflection_pb2.ServerReflectionRequest(list_services="")
    names: list[str] = []
    async for answer in stub.ServerReflectionInfo(iter([question]), metadata=bearer):
        names += [service.name for service in answer.list_services_response.service]
    return names


async def test_metrics_are_scraped_from_a_port_of_their_own(keys: Keys) -> None:
    async with serving(keys, Tricky()) as here, client(keys, here.address) as stub:
        await stub.Admit(pb.AdmitRequest())
        url = f"http://{here.metrics_address}/metrics"
        text = (await asyncio.to_thread(urllib.request.urlopen, url)).read().decode()
    assert 'glossa_tricky_requests_total{code="OK",method="Admit"}' in text


async def test_too_large_a_message_is_refused_before_it_is_read(keys: Keys) -> None:
    async with (
        serving(keys, Tricky(), max_message_bytes=2048) as here,
        client(keys, here.address) as stub,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Admit(pb.AdmitRequest(user_id="x" * 4096))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_message_that_cannot_be_decoded_is_refused_after_the_token(keys: Keys) -> None:
    not_utf8 = b"\x12\x02\xff\xfe"  # user_id of AdmitRequest
    async with (
        serving(keys, Tricky()) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        call: Any = channel.unary_unary(f"/{NAME}/Admit")
        with pytest.raises(grpc.aio.AioRpcError) as without_token:
            await call(not_utf8)
        with pytest.raises(grpc.aio.AioRpcError) as with_token:
            await call(not_utf8, metadata=metadata(keys.token("gateway")))

    assert without_token.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert with_token.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "UTF-8" in (with_token.value.details() or "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"GLOSSA_LOG_LEVEL": "loud"}, "GLOSSA_LOG_LEVEL"),
        ({"GLOSSA_DATABASE_URL": "nonsense"}, "the address is malformed"),
        ({"GLOSSA_DATABASE_URL": "postgresql://x:y@127.0.0.1:1/z"}, "connection refused"),
        ({"GLOSSA_VERIFY_KEY_FILE": "/nowhere"}, "GLOSSA_VERIFY_KEY_FILE"),
    ],
)
def test_a_service_that_cannot_start_says_why_in_one_line(
    databases: Mapping[str, str], keys: Keys, settings: dict[str, str], words: str
) -> None:
    environment = {
        "GLOSSA_DATABASE_URL": databases["quota"],
        "GLOSSA_VERIFY_KEY_FILE": str(keys.verify_key_file),
        **settings,
    }
    result = subprocess.run(
        [sys.executable, "-m", "services.quota"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert result.returncode == 1
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("quota cannot start: ")
    assert words in line


async def test_no_rpc_of_any_service_answers_without_a_token(suite: Suite) -> None:
    """Every method of the contract, found through the descriptors: new ones are covered at once."""
    services = {
        "glossa.registry.v1.RegistryService": "registry",
        "glossa.cache.v1.CacheService": "cache",
        "glossa.cache.v1.JobService": "cache",
        "glossa.quota.v1.QuotaService": "quota",
        "glossa.worker.v1.WorkerService": "worker",
    }
    for name, service in services.items():
        for method in descriptor_pool.Default().FindServiceByName(name).methods:
            code = await _call_bare(suite.channel(service), f"/{name}/{method.name}", method)
            assert code == grpc.StatusCode.UNAUTHENTICATED, method.full_name


async def _call_bare(channel: grpc.aio.Channel, path: str, method: Any) -> grpc.StatusCode:
    streams = (method.client_streaming, method.server_streaming)
    kinds: Mapping[tuple[bool, bool], Any] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    message: Any = iter([b""]) if method.client_streaming else b""
    call = kinds[streams](path)(message, timeout=10)
    return grpc.StatusCode(await call.code())
