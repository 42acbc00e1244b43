"""Runs one piece of work per key at a time; everyone who asks meanwhile gets the same answer."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SingleFlight(Generic[Key, Result]):
    """Work under way, by key. A caller that goes away does not stop it for the others."""

    def __init__(self) -> None:
        self._flights: dict[Key, asyncio.Task[Result]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        """Join the work for this key, or start it."""
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._fly(key, work))
            self._flights[key] = flight
            flight.add_done_callback(_look_at_error)
        return await asyncio.shield(flight)

    async def _fly(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await work()
        finally:
            del self._flights[key]


def _look_at_error(flight: "asyncio.Task[Result]") -> None:
    """When every caller has gone nobody else looks, and asyncio would complain later."""
    if not flight.cancelled():
        flight.exception()
