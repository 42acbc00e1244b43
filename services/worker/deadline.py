"""How long an attempt may take; the Cache may grant more while it runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta


class Deadline:
    """Counts from now; raises TimeoutError in the block it is set around."""

    def __init__(self, time_left: timedelta) -> None:
        self._ends_at = _from_now(time_left)
        self._timeout: asyncio.Timeout | None = None

    def grant(self, time_left: timedelta) -> None:
        """The attempt may last this much longer from now; never less than it was told before."""
        self._ends_at = max(self._ends_at, _from_now(time_left))
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._ends_at)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.timeout_at(self._ends_at) as timeout:
            self._timeout = timeout
            try:
                yield
            finally:
                self._timeout = None


def _from_now(time_left: timedelta) -> float:
    return asyncio.get_running_loop().time() + max(0.0, time_left.total_seconds())
