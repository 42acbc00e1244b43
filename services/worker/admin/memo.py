"""Remembers an answer for a moment, so that many open pages ask no more than one."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

# A service that is back is noticed soon, however long its answers stay fresh.
MOST_FAILED_SECONDS = 5.0


class Memo(Generic[Value]):
    """What was answered last, be it a failure, while it is fresh; who comes meanwhile shares it."""

    def __init__(
        self, ask: Callable[[], Coroutine[Any, Any, Value]], *, fresh_seconds: float
    ) -> None:
        self._ask = ask
        self._fresh_seconds = fresh_seconds
        self._answer: asyncio.Task[Value] | None = None
        self._fresh_until = float("-inf")

    async def get(self) -> Value:
        if self._answer is None or (self._answer.done() and time.monotonic() > self._fresh_until):
            # Everybody who gets here was checked to be an admin, whose token it may be.
            self._answer = asyncio.create_task(self._ask())
            self._answer.add_done_callback(self._note)
        # Who leaves early takes nothing from those who wait for the same answer.
        return await asyncio.shield(self._answer)

    def _note(self, answer: asyncio.Task[Value]) -> None:
        failed = answer.cancelled() or answer.exception() is not None
        seconds = min(self._fresh_seconds, MOST_FAILED_SECONDS) if failed else self._fresh_seconds
        self._fresh_until = float("-inf") if answer.cancelled() else time.monotonic() + seconds
