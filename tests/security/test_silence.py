"""Silence holds no place for long: of who may call, of who reflects, of who is refused a stream."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from glossa.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.runtime import messages
from services.runtime.auth import allow
from services.runtime.errors import InvalidInput
from services.runtime.server import Parts, Running, Servicer, running
from services.runtime.settings import ServiceSettings
from tests.runtime.test_server import Tricky, serving, unused
from tests.security.test_caps import ADMIT, Silence, code_of, raw
from tests.suite import Keys, metadata

REGISTRY_SERVICE = "glossa.registry.v1.RegistryService"
UPLOAD = f"/{REGISTRY_SERVICE}/UploadDocument"


class Refusing:
    """Takes no upload from anybody."""

    def __getattr__(self, name: str) -> Any:
        """The rest of the contract, which nobody calls here."""
        return unused

    @allow("gateway")
    async def UploadDocument(self, received: AsyncIterator[Any], context: Any) -> None:
        raise InvalidInput("not today")


@asynccontextmanager
async def refusing(keys: Keys, handler: Refusing) -> AsyncIterator[Running]:
    add = add_RegistryServiceServicer_to_server

    @asynccontextmanager
    async def compose(_: ServiceSettings) -> AsyncIterator[Parts]:
        yield Parts(servicers=[Servicer(name=REGISTRY_SERVICE, handler=handler, add=add)])

    config = ServiceSettings(
        database_url="postgresql://unused", verify_key_file=keys.verify_key_file
    )
    async with running("tricky", config, compose) as here:
        yield here


async def test_who_may_call_holds_no_place_by_sending_nothing(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MESSAGE_SECONDS", 0.05)
    bearer, silence = metadata(keys.token("gateway")), Silence()
    async with (
        serving(keys, Tricky(), max_concurrent_rpcs=1) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        silent = raw(channel, "stream_unary", ADMIT)(silence, metadata=bearer, timeout=60)
        assert await code_of(silent) == grpc.StatusCode.INVALID_ARGUMENT
        assert "send the message within" in await silent.details()
        await QuotaServiceStub(channel).Admit(pb.AdmitRequest(), metadata=bearer, timeout=60)
        silence.end()


async def test_a_silent_reflection_stream_is_let_go_after_its_answers(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "SILENCE_SECONDS", 0.05)
    bearer, silence = metadata(keys.user_token("alice")), Silence()

    async def ask_once() -> AsyncIterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        async for _ in silence:
            yield _

    async with (
        serving(keys, Tricky()) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asking = stub.ServerReflectionInfo(ask_once(), metadata=bearer, timeout=60)
        assert (await asking.read()).HasField("list_services_response")
        assert await code_of(asking) == grpc.StatusCode.INVALID_ARGUMENT
        silence.end()


async def test_a_stranger_who_streams_is_not_heard_out(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused by the headers: neither waited for nor listened to."""
    monkeypatch.setattr(messages, "LINGER_SECONDS", 3600.0)
    silence = Silence()
    async with (
        refusing(keys, Refusing()) as here,
        grpc.aio.insecure_channel(here.address) as channel,
    ):
        for bearer in (None, metadata(keys.token("worker"))):
            stranger = raw(channel, "stream_unary", UPLOAD)(silence, metadata=bearer, timeout=60)
            assert await code_of(stranger) in {
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.PERMISSION_DENIED,
            }
        silence.end()
