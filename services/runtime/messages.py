"""How the messages of a call are taken: one or all, decoded or refused, heard out at the end."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from services.runtime.errors import InvalidInput

# How much of a refused upload is still taken, so that the client hears the refusal.
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 * 1024 * 1024

# What a handler gets to see of the messages of a call.
Receive = Callable[[AsyncIterable[Any], Any], Awaitable[Any]]


class _Undecodable:
    """Stands for a message that is not what it should be, until somebody may be told so."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def ByteSize(self) -> int:
        """As protobuf's own messages tell theirs."""
        return self._size_bytes


def tolerant(deserialize: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Left to itself, gRPC answers UNKNOWN with our traceback, before any token is looked at."""
    if deserialize is None:
        return None

    def decode(content: bytes) -> Any:
        try:
            return deserialize(content)
        except DecodeError:
            return _Undecodable(len(content))

    return decode


async def only_message(_: AsyncIterable[Any], context: Any) -> Any:
    """The message of a unary call; read by hand, which is quicker than a loop over one."""
    message = await context.read()
    if message is grpc.aio.EOF:
        raise InvalidInput("the call ended without a message")
    return _decoded(message)


async def all_messages(messages: AsyncIterable[Any], _: Any) -> AsyncIterator[Any]:
    return _decoded_stream(messages)


async def _decoded_stream(messages: AsyncIterable[Any]) -> AsyncIterator[Any]:
    async for message in messages:
        yield _decoded(message)


def _decoded(message: Any) -> Any:
    """The message, refused if it could not be decoded."""
    if isinstance(message, _Undecodable):
        raise InvalidInput("the message is not valid protobuf; its strings must be UTF-8")
    return message


async def hear_out(messages: AsyncIterable[Any]) -> None:
    """Before a refusal, take what the client is about to send, within reason.

    A client of grpc.aio whose send is cut off reports that, as INTERNAL, instead of our refusal.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            await _discard(messages, LINGER_BYTES)


async def _discard(messages: AsyncIterable[Any], most_bytes: int) -> None:
    seen_bytes = 0
    async for message in messages:
        seen_bytes += len(message) if isinstance(message, memoryview) else message.ByteSize()
        if seen_bytes > most_bytes:
            return
