"""A real database in which something else happens between two statements of a transaction."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from services.runtime.database import Database

Meanwhile = Callable[[], Awaitable[object]]


class Interrupted:
    """As its database, but before a statement runs for the nth time something else does."""

    def __init__(
        self, database: Database, statement: str, meanwhile: Meanwhile, *, nth: int = 1
    ) -> None:
        self._database = database
        self._statement = statement
        self._meanwhile = meanwhile
        self._left = nth

    def as_database(self) -> Database:
        return cast(Database, self)

    @property
    def happened(self) -> bool:
        return self._left <= 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with self._database.transaction() as connection:
            yield _Statements(connection, self._before)

    async def _before(self, statement: str) -> None:
        if statement == self._statement:
            self._left -= 1
            if self._left == 0:
                await self._meanwhile()


class _Statements:
    def __init__(self, connection: Any, before: Callable[[str], Awaitable[None]]) -> None:
        self._connection = connection
        self._before = before

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        run = getattr(self._connection, name)

        async def interrupted(statement: str, *values: object) -> Any:
            await self._before(statement)
            return await run(statement, *values)

        return interrupted
