"""Reports every call to a model to Quota, in batches; no attempt waits for it or fails with it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import islice

import structlog

from services.runtime.errors import DependencyDown, GlossaError
from services.worker.domain import ModelCall
from services.worker.metrics import OPERATIONS_LOST

log = structlog.get_logger()

OPERATIONS_PER_CALL = 100
# An hour of a busy worker; what is more is lost rather than kept in memory.
MAX_WAITING = 10_000
FIRST_DELAY = timedelta(milliseconds=250)
LONGEST_DELAY = timedelta(seconds=30)
# For the last calls when the worker is stopped.
GRACE = timedelta(seconds=2)


class Operations:
    """Model calls on their way to Quota, which records each once however often it is sent."""

    def __init__(self, send: Callable[[Sequence[ModelCall]], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: deque[ModelCall] = deque()
        self._arrived = asyncio.Event()

    def report(self, call: ModelCall) -> None:
        """Takes note of a call and returns at once."""
        if len(self._waiting) >= MAX_WAITING:
            OPERATIONS_LOST.labels("overflow").inc()
            return
        self._waiting.append(call)
        self._arrived.set()

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Sends what is reported until the block ends, and what is left then."""
        task = asyncio.create_task(self._run(), name="report_operations")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self._send_the_rest()

    async def _send_the_rest(self) -> None:
        try:
            async with asyncio.timeout(GRACE.total_seconds()):
                while self._waiting:
                    await self._send_some()
        except (DependencyDown, TimeoutError):
            OPERATIONS_LOST.labels("stopped").inc(len(self._waiting))
            log.warning("operations_not_recorded", count=len(self._waiting))

    async def _run(self) -> None:
        delay = FIRST_DELAY
        while True:
            await self._arrived.wait()
            try:
                await self._send_some()
                delay = FIRST_DELAY
            except DependencyDown as error:
                log.warning("operations_postponed", reason=error.reason, count=len(self._waiting))
                await asyncio.sleep(delay.total_seconds())
                delay = min(2 * delay, LONGEST_DELAY)

    async def _send_some(self) -> None:
        """Sends the oldest; they wait on until they are recorded or refused."""
        batch = list(islice(self._waiting, OPERATIONS_PER_CALL))
        if batch:
            await self._send_or_split(batch)
        for _ in batch:
            self._waiting.popleft()
        if not self._waiting:
            self._arrived.clear()

    async def _send_or_split(self, batch: Sequence[ModelCall]) -> None:
        """A batch that is refused goes one by one, so that one bad call does not hide the rest.

        Nor may it stay at the head of the queue: what fails alone, however it fails, is dropped.
        """
        try:
            await self._send(batch)
        except DependencyDown:
            raise
        except Exception as error:
            if len(batch) > 1:
                for call in batch:
                    await self._send_or_split([call])
                return
            # Money was spent that no ceiling knows of: a person has to look.
            OPERATIONS_LOST.labels("refused").inc()
            reason = error.reason if isinstance(error, GlossaError) else type(error).__name__
            log.warning("operation_refused", reason=reason, cause=str(error), model=batch[0].model)
