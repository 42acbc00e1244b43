"""Runs one piece of work per key at a time; everyone who asks meanwhile gets the same answer."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

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


class SharedWork(Generic[Key, Result]):
    """The same for many keys at once: what nobody works on yet is done in one piece."""

    def __init__(self) -> None:
        self._under_way: dict[Key, asyncio.Task[Mapping[Key, Result]]] = {}

    async def run(
        self,
        keys: Sequence[Key],
        work: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Result]]],
    ) -> dict[Key, Result]:
        """The results for these keys, of work under way and of work begun for the others."""
        untouched = [key for key in keys if key not in self._under_way]
        if untouched:
            task = asyncio.create_task(self._work(untouched, work))
            self._under_way.update(dict.fromkeys(untouched, task))
            task.add_done_callback(_look_at_error)
        joined = {key: self._under_way[key] for key in keys}
        return {key: (await asyncio.shield(task))[key] for key, task in joined.items()}

    async def _work(
        self,
        keys: Sequence[Key],
        work: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Result]]],
    ) -> Mapping[Key, Result]:
        try:
            return await work(keys)
        finally:
            for key in keys:
                del self._under_way[key]


def _look_at_error(flight: "asyncio.Task[Any]") -> None:
    """When every caller has gone nobody else looks, and asyncio would complain later."""
    if not flight.cancelled():
        flight.exception()
