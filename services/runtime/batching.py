"""Natural batching: send while one batch is in flight, collect the rest.

At low load every item travels alone and waits for nothing; under load batches grow by themselves.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from datetime import timedelta
from typing import Generic, TypeVar

from services.runtime.errors import DependencyDown
from services.runtime.tracing import batch as traced_batch
from services.runtime.tracing import traceparent

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Sends items in batches, one batch at a time; `send` answers one result per item, in order."""

    def __init__(
        self,
        send: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        max_batch: int = 256,
        max_waiting: int = 10_000,
    ) -> None:
        self._send = send
        self._max_batch = max_batch
        self._max_waiting = max_waiting
        # Each with the span it belongs to.
        self._waiting: deque[tuple[Item, asyncio.Future[Result], str]] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        if len(self._waiting) >= self._max_waiting:
            raise DependencyDown(
                "too many requests are waiting",
                reason="OVERLOADED",
                retry_after=timedelta(seconds=1),
            )
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future, traceparent()))
        if self._sending is None:
            # A context of its own: the batch must not inherit the deadline of whoever came first.
            self._sending = asyncio.create_task(self._send_all(), context=Context())
        return await future

    async def _send_all(self) -> None:
        try:
            while batch := self._take_batch():
                await self._send_batch(batch)
                # Who has arrived meanwhile, and has yet to be taken up, travels with the next.
                await asyncio.sleep(0)
        finally:
            self._sending = None

    def _take_batch(self) -> "list[tuple[Item, asyncio.Future[Result], str]]":
        batch: list[tuple[Item, asyncio.Future[Result], str]] = []
        while self._waiting and len(batch) < self._max_batch:
            waiting = self._waiting.popleft()
            if not waiting[1].done():  # its caller may have gone away
                batch.append(waiting)
        return batch

    async def _send_batch(self, batch: "list[tuple[Item, asyncio.Future[Result], str]]") -> None:
        try:
            with traced_batch([parent for _, _, parent in batch]):
                results = await self._send([item for item, _, _ in batch])
            assert len(results) == len(batch), "one result per item"
        except asyncio.CancelledError:
            for _, future, _ in batch:
                future.cancel()
            raise
        except Exception as error:  # everyone in the batch learns of it
            for _, future, _ in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future, _), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
