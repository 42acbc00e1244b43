"""A duty that runs again and again: timed, woken early for work, not ended by a failure."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import structlog

from services.runtime.errors import DependencyDown

log = structlog.get_logger()

TELL_AGAIN_SECONDS = 0.1


class Periodic:
    """A handle on a running duty."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Run now instead of at the next tick."""
        self._woken.set()

    async def wait(self, every: timedelta) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(every.total_seconds()):
                await self._woken.wait()
        self._woken.clear()


@asynccontextmanager
async def periodic(
    name: str, *, every: timedelta, run_once: Callable[[], Awaitable[object]]
) -> AsyncIterator[Periodic]:
    """Run `run_once` at once and then at least every `every`, until the block ends."""
    handle = Periodic()

    async def repeat() -> None:
        while True:
            try:
                await run_once()
            except DependencyDown as error:
                # Expected while something is away; a traceback every second would hide the rest.
                log.warning("periodic_duty_postponed", duty=name, reason=error.reason)
            except Exception:
                log.exception("periodic_duty_failed", duty=name)
            await handle.wait(every)

    task = asyncio.create_task(repeat(), name=name)
    try:
        yield handle
    finally:
        await _end(task)


async def _end(task: "asyncio.Task[None]") -> None:
    """Tells it to end until it does: asyncpg swallows a cancellation that comes as it connects."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=TELL_AGAIN_SECONDS)
