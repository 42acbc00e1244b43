"""Stops a Cache between two transactions, as a crash would; no production code knows of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from services.runtime.database import Connection, Database

MOMENTS = ("before", "after")


class Failpoints:
    """Counts the transactions of calls, or of one duty, and ends who does the chosen one.

    Every public method of a store is one transaction, so that these are all the places where a
    crash can leave something half done.
    """

    def __init__(self) -> None:
        self._armed: tuple[int, str, str] | None = None
        self._count = 0
        self._seen: set[Database] = set()
        self._spared: set[Database] = set()
        self.fired = asyncio.Event()

    def arm(self, boundary: int, moment: str, *, duty: str = "") -> None:
        """Stop before or after the commit of the transaction with this number, from 0.

        A duty is stopped in a process that starts from now on, not in those that run already.
        """
        self._armed, self._count = (boundary, moment, duty), 0
        self._spared = set(self._seen) if duty else set()
        self.fired = asyncio.Event()

    def disarm(self) -> None:
        self._armed = None

    @asynccontextmanager
    async def at(self, database: Database) -> AsyncIterator["Boundary"]:
        self._seen.add(database)
        counts = _is_cache(database) and database not in self._spared
        boundary = Boundary(self, self._number() if counts else None)
        yield boundary
        boundary.reach("after")

    def _number(self) -> int | None:
        """The number of the transaction that begins, if it is one of those that count."""
        task = asyncio.current_task()
        assert task is not None
        is_duty = "periodic" in getattr(task.get_coro(), "__qualname__", "")
        duty = task.get_name() if is_duty else ""
        if self._armed is None or duty != self._armed[2]:
            return None
        self._count += 1
        return self._count - 1

    def reach(self, number: int, moment: str) -> None:
        if self._armed is not None and (number, moment) == self._armed[:2]:
            self._armed = None
            self.fired.set()
            # What a killed process does next: nothing. No handler of errors sees this one.
            raise asyncio.CancelledError


class Boundary:
    def __init__(self, failpoints: Failpoints, number: int | None) -> None:
        self._failpoints = failpoints
        self._number = number

    def reach(self, moment: str) -> None:
        if self._number is not None:
            self._failpoints.reach(self._number, moment)


def _is_cache(database: Database) -> bool:
    settings = database._pool._connect_kwargs["server_settings"]  # type: ignore[attr-defined]
    return bool(settings["application_name"] == "glossa-cache")


def install(monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    """Put a failpoint around every transaction of this process."""
    failpoints = Failpoints()
    connect = Database.connection

    @asynccontextmanager
    async def connection(self: Database) -> AsyncIterator[Connection]:
        async with failpoints.at(self) as boundary:
            boundary.reach("before")
            async with connect(self) as connection:
                yield connection

    @asynccontextmanager
    async def transaction(self: Database) -> AsyncIterator[Connection]:
        async with (
            failpoints.at(self) as boundary,
            connect(self) as connection,
            connection.transaction(),
        ):
            yield connection
            # All is written and nothing is committed.
            boundary.reach("before")

    monkeypatch.setattr(Database, "connection", connection)
    monkeypatch.setattr(Database, "transaction", transaction)
    return failpoints
