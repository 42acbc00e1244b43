"""Connections to other processes: plain on one machine, else with certificates as they are now."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import grpc

from services.runtime.tls import Mesh, Pems, Tls, refuse_plain_text

# How long calls that began before a renewal may go on over the connection they began on.
OUTDATED_SECONDS = 24 * 3600.0
_ON_THIS_MACHINE = ("unix:", "unix-abstract:")


def open_transport(
    address: str,
    tls: Tls | Mesh | None,
    *,
    options: Sequence[tuple[str, Any]],
) -> grpc.aio.Channel:
    """A channel, encrypted where there are certificates for it."""
    if tls is None and not address.startswith(_ON_THIS_MACHINE):
        # gRPC takes names with how to find them, as in dns:///localhost:50051.
        refuse_plain_text(address, address.rpartition("/")[2].rpartition(":")[0])
    if not isinstance(tls, Tls):
        return grpc.aio.insecure_channel(address, options=options)

    def connect(pems: Pems) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        return grpc.aio.secure_channel(address, credentials, options=options)

    return _RenewedChannel(tls, connect)


class ForwardingChannel(grpc.aio.Channel):
    """Makes its calls over another channel; `_calls` says how, for all four kinds alike."""

    def _calls(self, kind: str, method: str, *how: Any, **named: Any) -> Any:
        raise NotImplementedError

    def unary_unary(self, method: str, *how: Any, **named: Any) -> Any:
        return self._calls("unary_unary", method, *how, **named)

    def unary_stream(self, method: str, *how: Any, **named: Any) -> Any:
        return self._calls("unary_stream", method, *how, **named)

    def stream_unary(self, method: str, *how: Any, **named: Any) -> Any:
        return self._calls("stream_unary", method, *how, **named)

    def stream_stream(self, method: str, *how: Any, **named: Any) -> Any:
        return self._calls("stream_stream", method, *how, **named)

    async def __aenter__(self) -> "ForwardingChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _RenewedChannel(ForwardingChannel):
    """Makes new calls over a new connection once certificates have been renewed.

    gRPC fixes a channel's certificates for ever. Calls under way stay on the connection they have,
    until they end or we are closed; a day is longer than any of ours.
    """

    def __init__(self, tls: Tls, connect: Callable[[Pems], grpc.aio.Channel]) -> None:
        self._tls = tls
        self._connect = connect
        self._pems = tls.current()
        self._channel = connect(self._pems)
        # Weak as gRPC's own: a stream that nobody reads any more is for the collector to end.
        self._under_way: WeakSet[Any] = WeakSet()
        self._closing: set[asyncio.Task[None]] = set()

    def _current(self) -> grpc.aio.Channel:
        pems = self._tls.current()
        if pems is not self._pems:
            outdated, self._channel = self._channel, self._connect(pems)
            self._pems = pems
            closing = asyncio.create_task(outdated.close(OUTDATED_SECONDS))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        return self._channel

    def _calls(self, kind: str, method: str, *how: Any, **named: Any) -> Any:
        on, make = None, None

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal on, make
            channel = self._current()
            if channel is not on:
                on, make = channel, getattr(channel, kind)(method, *how, **named)
            assert make is not None
            made = make(*arguments, **options)
            self._under_way.add(made)
            made.add_done_callback(self._under_way.discard)
            return made

        return call

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)
        # gRPC does not let us shorten a grace once given, but waits no longer than for calls.
        for call in list(self._under_way):
            call.cancel()
        await asyncio.gather(*self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel_ready()
