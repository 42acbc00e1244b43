"""Connections to other processes: plain on one machine, else with certificates as they are now."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from services.runtime.tls import Pems, Tls


def open_transport(
    address: str,
    tls: Tls | None,
    *,
    options: Sequence[tuple[str, Any]],
) -> grpc.aio.Channel:
    """A channel, encrypted where there are certificates for it."""
    if tls is None:
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

    gRPC fixes a channel's certificates for ever. Calls under way stay where they are until the
    renewal after the next, or until we are closed.
    """

    def __init__(self, tls: Tls, connect: Callable[[Pems], grpc.aio.Channel]) -> None:
        self._tls = tls
        self._connect = connect
        self._pems = tls.current()
        self._channels = [connect(self._pems)]
        self._closing: set[asyncio.Task[None]] = set()

    def _current(self) -> grpc.aio.Channel:
        pems = self._tls.current()
        if pems is not self._pems:
            self._pems = pems
            self._channels.append(self._connect(pems))
            for outdated in self._channels[:-2]:
                self._channels.remove(outdated)
                closing = asyncio.create_task(outdated.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        return self._channels[-1]

    def _calls(self, kind: str, method: str, *how: Any, **named: Any) -> Any:
        on, make = None, None

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal on, make
            channel = self._current()
            if channel is not on:
                on, make = channel, getattr(channel, kind)(method, *how, **named)
            assert make is not None
            return make(*arguments, **options)

        return call

    async def close(self, grace: float | None = None) -> None:
        for channel in self._channels:
            await channel.close(grace)
        await asyncio.gather(*self._closing)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel_ready()
