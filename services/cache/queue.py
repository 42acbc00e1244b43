"""What the parts of one Cache process tell each other about the queue: new work, pace, the end."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class JobBell:
    """Wakes every stream that waits for jobs; polling underneath makes up for a lost ring."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Event] = set()
        self._tell_others: Callable[[], None] | None = None
        self.draining = False

    def ring(self) -> None:
        """There is new work: wake our own streams, and have the other replicas told."""
        self.ring_here()
        if self._tell_others is not None:
            self._tell_others()

    def ring_here(self) -> None:
        for listener in self._listeners:
            listener.set()

    def tell_others_with(self, tell_others: Callable[[], None]) -> None:
        self._tell_others = tell_others

    async def drain(self) -> None:
        """No more jobs from this process: every stream ends."""
        self.draining = True
        self.ring_here()

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
