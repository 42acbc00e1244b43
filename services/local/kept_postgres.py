"""The embedded Postgres of a running suite, started again on the same port when it dies."""

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

from services.local.errors import LocalError
from services.local.postgres import EmbeddedPostgres
from services.local.processes import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Report


class KeptPostgres:
    """A server that is kept running until the block ends."""

    def __init__(self, folder: Path, report: Report) -> None:
        self._folder = folder
        self._report = report
        self._server = EmbeddedPostgres(folder)
        self._keeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self._server.url

    async def __aenter__(self) -> Self:
        await self._server.start()
        self._keeper = asyncio.create_task(self._keep(), name="keep postgres")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._keeper is not None
        self._keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._keeper
        await self._server.stop()

    async def _keep(self) -> None:
        while True:
            await self._server.wait()
            self._report("postgres ended unexpectedly; starting it again")
            await self._server.stop()
            await self._start_again()
            self._report("postgres is back")

    async def _start_again(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        # The services know the port, so it stays.
        self._server = EmbeddedPostgres(self._folder, port=self._server.port)
        while True:
            try:
                await self._server.start()
            except LocalError as error:
                self._report(f"{error}; trying again")
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                return
