"""Lets calls through to the database while it answers; when it is slow or away, says so at once."""

import asyncio
import time
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

from services.quota.breaker import Breaker, Circuit
from services.quota.metrics import CIRCUIT_OPEN, REFUSED_CALLS, WAITING_CALLS
from services.runtime.errors import DependencyDown

DATABASE_UNAVAILABLE = "DATABASE_UNAVAILABLE"

Result = TypeVar("Result")


class Gate:
    """Bounds how many calls wait for the database and how long; stops asking one that is away."""

    def __init__(
        self, *, answer_within: timedelta, max_waiting: int, breaker: Breaker | None = None
    ) -> None:
        self._answer_within = answer_within
        self._max_waiting = max_waiting
        self._breaker = breaker or Breaker()
        self._waiting: set[asyncio.Task[Any]] = set()

    async def through(self, call: Coroutine[Any, Any, Result]) -> Result:
        """The call's own result or error, or a refusal by the time an answer is due."""
        refusal = self._refusal()
        if refusal is not None:
            call.close()
            raise refusal
        task = asyncio.ensure_future(call)
        self._waiting.add(task)
        WAITING_CALLS.inc()
        task.add_done_callback(self._ended)
        try:
            await asyncio.wait({task}, timeout=self._answer_within.total_seconds())
        except asyncio.CancelledError:
            # Whoever asked has gone. Were it the probe, nobody else would be let through again.
            if self._breaker.circuit is Circuit.HALF_OPEN:
                self._failed()
            task.cancel()
            raise
        if task.done():
            return self._told(task)
        # Not waited for: a connection to a frozen server takes its time to be given up.
        task.cancel()
        self._failed()
        REFUSED_CALLS.labels("slow").inc()
        raise _unavailable(self._breaker.pause)

    def _refusal(self) -> DependencyDown | None:
        if len(self._waiting) >= self._max_waiting:
            REFUSED_CALLS.labels("overloaded").inc()
            return DependencyDown("too many calls wait for the database", reason="OVERLOADED")
        now = time.monotonic()
        if not self._breaker.may_pass(now):
            REFUSED_CALLS.labels("open").inc()
            return _unavailable(self._breaker.retry_after(now))
        return None

    def _told(self, task: "asyncio.Task[Result]") -> Result:
        error = task.exception()
        if isinstance(error, DependencyDown) and error.reason == DATABASE_UNAVAILABLE:
            self._failed()
        else:  # any other answer, a refusal included, came from a database that works
            self._breaker.succeeded()
            CIRCUIT_OPEN.set(0)
        return task.result()

    def _failed(self) -> None:
        self._breaker.failed(time.monotonic())
        CIRCUIT_OPEN.set(self._breaker.circuit is Circuit.OPEN)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._waiting.discard(task)
        WAITING_CALLS.dec()
        if not task.cancelled():
            task.exception()  # whoever wanted to know has been told


def _unavailable(retry_after: timedelta) -> DependencyDown:
    return DependencyDown(
        "the database does not answer in time",
        reason=DATABASE_UNAVAILABLE,
        retry_after=retry_after,
    )
