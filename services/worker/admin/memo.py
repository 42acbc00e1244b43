"""Remembers an answer for a moment, so that many open pages ask no more than one."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """What was answered last, while it is fresh; who comes meanwhile waits for the same answer."""

    def __init__(self, ask: Callable[[], Awaitable[Value]], *, fresh_seconds: float) -> None:
        self._ask = ask
        self._fresh_seconds = fresh_seconds
        self._lock = asyncio.Lock()
        self._value: Value | None = None
        self._asked_at = float("-inf")

    async def get(self) -> Value:
        async with self._lock:
            if self._value is None or time.monotonic() - self._asked_at > self._fresh_seconds:
                # Everybody who gets here was checked to be an admin, whose token it may be.
                self._value = await self._ask()
                self._asked_at = time.monotonic()
            return self._value
