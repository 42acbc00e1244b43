"""Channels to other services: token, request id and deadline on every call; retries when safe."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import grpc

from services.runtime import request, tracing
from services.runtime.errors import DependencyDown, DependencyFailed
from services.runtime.status import from_call
from services.runtime.tls import Tls
from services.runtime.transport import ForwardingChannel, open_transport

DEFAULT_DEADLINE_SECONDS = 5.0

_RETRY_POLICY = {
    "maxAttempts": 3,
    "initialBackoff": "0.05s",
    "maxBackoff": "0.5s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


_AWAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        # Without a reason of ours: shed by a server that has too much to do.
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)
_NOT_FOR_CALLERS = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)


class TokenSource(Protocol):
    """Where the caller's own token comes from."""

    def token(self) -> str: ...


def open_channel(
    address: str,
    token: TokenSource,
    *,
    tls: Tls | None = None,
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    max_message_bytes: int = 16 * 1024 * 1024,
    sent_once: Sequence[str] = (),
) -> grpc.aio.Channel:
    """A channel whose calls are tried again while the other side is away.

    `sent_once` names methods ("package.Service/Method") that must not be: who calls them wants to
    know that no second message is under way.
    """
    options: list[tuple[str, Any]] = [
        ("grpc.service_config", _service_config(sent_once)),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # Keepalive alone does not notice a frozen peer; this does.
        ("grpc.http2.ping_timeout_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),
        # A restarted peer is found again within a second.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
    ]
    return _PreparedChannel(open_transport(address, tls, options=options), token, deadline_seconds)


def _service_config(sent_once: Sequence[str]) -> str:
    single = [
        {"service": service, "method": method}
        for service, _, method in (name.partition("/") for name in sent_once)
    ]
    methods: list[dict[str, Any]] = [{"name": [{}], "retryPolicy": _RETRY_POLICY}]
    if single:
        methods.append({"name": single})
    return json.dumps({"methodConfig": methods})


@contextmanager
def calling(service: str) -> Iterator[None]:
    """Turn a failed call into our errors: trouble is DependencyDown, a refusal is passed on.

    A refusal is passed on only if it was meant for the caller: it carries a reason of ours then.
    That our own token was refused, or a load limit hit, is our trouble and not the caller's.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        received = from_call(error)
        if received.is_ours and error.code() not in _NOT_FOR_CALLERS:
            raise received from error
        kind = DependencyDown if error.code() in _AWAY else DependencyFailed
        raise kind(
            f"the {service} service does not answer",
            reason=f"{service.upper()}_UNAVAILABLE",
            retry_after=received.retry_after or timedelta(seconds=1),
        ) from error


class _PreparedChannel(ForwardingChannel):
    """Fills in what every outgoing call carries.

    As an interceptor it would start a task for every call, at a third of what a call takes.
    """

    def __init__(
        self, channel: grpc.aio.Channel, token: TokenSource, deadline_seconds: float
    ) -> None:
        self._channel = channel
        self._token = token
        self._deadline_seconds = deadline_seconds

    def _calls(self, kind: str, method: str, *how: Any, **named: Any) -> Any:
        make = getattr(self._channel, kind)(method, *how, **named)

        def call(
            *arguments: Any, timeout: float | None = None, metadata: Any = None, **options: Any
        ) -> Any:
            carried = self._metadata(metadata)
            return make(*arguments, timeout=self._timeout(timeout), metadata=carried, **options)

        return call

    def _metadata(self, given: Any) -> grpc.aio.Metadata:
        metadata = grpc.aio.Metadata(*(given or ()))
        metadata.add("authorization", f"Bearer {self._token.token()}")
        call_id = request.request_id.get()
        if call_id:
            metadata.add(request.REQUEST_ID_HEADER, call_id)
        if parent := tracing.traceparent():
            metadata.add(tracing.TRACEPARENT_HEADER, parent)
        return metadata

    def _timeout(self, asked: float | None) -> float:
        timeout = self._deadline_seconds if asked is None else asked
        # gRPC for Python does not pass deadlines on: nobody waits longer than our own caller does.
        left = request.seconds_left()
        return timeout if left is None else min(timeout, left)

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()
