"""Every RPC of the contract, found through the descriptors: new ones are attacked at once."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from glossa.worker.v1 import worker_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from services.runtime.status import DETAILS_KEY
from tests.suite import Suite

FILES = {
    "registry": registry_pb2,
    "cache": cache_pb2,
    "jobs": jobs_pb2,
    "quota": quota_pb2,
    "worker": worker_pb2,
}
# Far beyond need: whoever waits for it has found a hang.
PATIENCE_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Rpc:
    """One method, and which of the four processes serves it."""

    service: str
    method: MethodDescriptor

    @property
    def name(self) -> str:
        return str(self.method.name)

    @property
    def path(self) -> str:
        return f"/{self.method.containing_service.full_name}/{self.method.name}"

    @property
    def request(self) -> type[Message]:
        return GetMessageClass(self.method.input_type)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Told:
    """How a call ended: everything a caller can tell one answer from another by."""

    code: grpc.StatusCode
    message: str
    details: bytes
    answers: tuple[bytes, ...]
    trailing: tuple[tuple[str, str | bytes], ...] = ()


def _all() -> Mapping[str, Rpc]:
    found = {}
    for file, module in FILES.items():
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                process = "cache" if file == "jobs" else file
                found[method.name] = Rpc(service=process, method=method)
    return found


RPCS = _all()


async def call(
    suite: Suite,
    rpc: Rpc,
    *messages: bytes,
    metadata: Any = None,
    channel: grpc.aio.Channel | None = None,
) -> Told:
    """Send bytes as they are; of a stream that goes on, the first answer is enough."""
    channel = channel or suite.channel(rpc.service)
    method = rpc.method
    kind = f"{_streaming(method.client_streaming)}_{_streaming(method.server_streaming)}"
    sent: Any = _stream(messages) if method.client_streaming else messages[0]
    options = {"metadata": metadata, "timeout": PATIENCE_SECONDS}
    running = getattr(channel, kind)(rpc.path)(sent, **options)
    answers: list[bytes] = []
    try:
        if method.server_streaming:
            async for answer in running:
                answers.append(answer)
                break
            else:
                return Told(code=grpc.StatusCode.OK, message="", details=b"", answers=())
            running.cancel()
        else:
            answers.append(await running)
    except grpc.aio.AioRpcError as error:
        trailing = tuple(error.trailing_metadata() or ())
        details = [one for key, one in trailing if key == DETAILS_KEY and isinstance(one, bytes)]
        return Told(
            code=error.code(),
            message=error.details() or "",
            details=b"".join(details),
            answers=tuple(answers),
            trailing=trailing,
        )
    return Told(code=grpc.StatusCode.OK, message="", details=b"", answers=tuple(answers))


async def _stream(messages: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def _streaming(streams: bool) -> str:
    return "stream" if streams else "unary"
