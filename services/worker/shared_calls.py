"""One call for everybody who wants the same at the same time; it ends when nobody wants it."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@dataclass(kw_only=True)
class _Call(Generic[Result]):
    task: "asyncio.Task[Result]"
    waiting: int = 0


class SharedCalls(Generic[Key, Result]):
    """Calls under way, by key.

    Unlike `runtime.SingleFlight` a call that everybody has given up is stopped: it costs money, and
    a worker that drains must leave nothing running.
    """

    def __init__(self) -> None:
        self._calls: dict[Key, _Call[Result]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        """Joins the call for this key, or makes it."""
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _Call(task=asyncio.create_task(_awaited(work)))
        call.waiting += 1
        try:
            return await asyncio.shield(call.task)
        finally:
            call.waiting -= 1
            # Whoever comes from now on makes a call of its own: this one has ended, or is about to.
            if (call.task.done() or not call.waiting) and self._calls.get(key) is call:
                del self._calls[key]
            if not call.waiting and not call.task.done():
                call.task.cancel()
                await asyncio.wait([call.task])


async def _awaited(work: Callable[[], Awaitable[Result]]) -> Result:
    return await work()
