"""What the parts of one Cache process tell each other about the queue: new work, pace, the end."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class JobBell:
    """Wakes every stream that waits for jobs; polling underneath makes up for a lost ring."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()
        self.draining = False

    def ring(self) -> None:
        for listener in self._listeners:
            listener.set()

    async def drain(self) -> None:
        """No more jobs from this process: every stream ends."""
        self.draining = True
        self.ring()

    @contextmanager
    def listen(self) -> Iterator[asyncio.Event]:
        listener = asyncio.Event()
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


class Pace:
    """How long a generation takes these days: a moving average, for estimates only."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds = seconds

    def add(self, seconds: float) -> None:
        self.seconds += 0.2 * (seconds - self.seconds)
