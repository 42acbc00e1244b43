"""The wire between Cache and Quota, on which one message can be lost, repeated or late."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

FAULTS = ("lost", "answer_lost", "twice", "late")


class QuotaEdge(grpc.GenericRpcHandler):
    """A server that passes every call on to Quota, byte by byte, but for the chosen one."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._fault: tuple[str, str] | None = None
        self._late: list[Callable[[], Awaitable[bytes]]] = []
        self.address = ""
        self.fired = asyncio.Event()

    def break_next(self, method: str, fault: str) -> None:
        self._fault = (method, fault)
        self.fired = asyncio.Event()

    async def deliver_late(self) -> None:
        """What was held back arrives now."""
        while self._late:
            await self._late.pop()()

    def service(self, handler_call_details: Any) -> Any:
        method = handler_call_details.method

        async def pass_on(message: bytes, context: Any) -> bytes:
            metadata = [
                (key, value)
                for key, value in context.invocation_metadata()
                if key in ("authorization", "x-request-id")
            ]
            call: Any = self._channel.unary_unary(method)

            async def send() -> bytes:
                answer: bytes = await call(message, metadata=metadata, timeout=5)
                return answer

            return await self._act(method.rpartition("/")[2], send, context)

        return grpc.unary_unary_rpc_method_handler(pass_on)

    async def _act(self, method: str, send: Callable[[], Awaitable[bytes]], context: Any) -> bytes:
        fault = self._take(method)
        if fault == "late":
            self._late.append(send)
        if fault in ("answer_lost", "twice"):
            await send()
        if fault in ("lost", "answer_lost", "late"):
            # To the sender all of these are silence; a deadline is not waited for.
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "nothing was heard")
        return await send()

    def _take(self, method: str) -> str | None:
        if self._fault is None or self._fault[0] != method:
            return None
        fault, self._fault = self._fault[1], None
        self.fired.set()
        return fault


@asynccontextmanager
async def quota_edge(quota_address: str) -> AsyncIterator[QuotaEdge]:
    async with grpc.aio.insecure_channel(quota_address) as channel:
        edge = QuotaEdge(channel)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((edge,))
        edge.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield edge
        finally:
            await server.stop(None)
