"""Two servers, one a synchronous standby of the other: nothing commits before both have it."""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg

from services.local.account import server_account
from services.local.postgres import EmbeddedPostgres, readable_bin
from services.local.tether import tethered

IN_STEP = "SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')"


class Pair:
    """A primary and its standby; `fail_over` loses the one and promotes the other."""

    def __init__(self, folder: Path) -> None:
        self.primary = EmbeddedPostgres(folder / "primary")
        self.standby = EmbeddedPostgres(folder / "standby")
        self._folder = folder

    @property
    def url(self) -> str:
        return self.primary.url

    async def __aenter__(self) -> Self:
        await self.primary.start()
        await self._copy()
        await self.standby.start()
        await _execute(self.primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        await _execute(self.primary.url, "SELECT pg_reload_conf()")
        async with asyncio.timeout(60):
            while not await _execute(self.primary.url, IN_STEP):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.standby.stop()
        await self.primary.stop()

    async def fail_over(self) -> str:
        """The primary dies at once; the address of who takes its place."""
        os.kill(server_pid(self.primary), signal.SIGKILL)
        await self.primary.wait()
        await self.primary.stop()
        await _execute(self.standby.url, "SELECT pg_promote()")
        return f"127.0.0.1:{self.standby.port}"

    async def return_the_old_one(self) -> str:
        """It starts as what it was, and still waits for its standby before it promises anything."""
        await self.primary.start()
        return f"127.0.0.1:{self.primary.port}"

    async def _copy(self) -> None:
        home, account = self._folder / "standby", server_account()
        home.mkdir(mode=0o711)
        (home / "data").mkdir(mode=0o700)
        account.own(home / "data")
        password = (self.primary.home / "password").read_text()
        shutil.copy(self.primary.home / "password", home / "password")
        where = ["-h", "127.0.0.1", "-p", str(self.primary.port), "-U", "postgres"]
        program = str(readable_bin(self.primary.home, account) / "pg_basebackup")
        process = await asyncio.create_subprocess_exec(
            *tethered(
                [program, *where, "-D", str(home / "data"), "-R", "-X", "stream", "-c", "fast"],
                on_parent_death=signal.SIGKILL,
                uid=account.uid,
                gid=account.gid,
            ),
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C", "PGPASSWORD": password},
        )
        assert await process.wait() == 0


def server_pid(server: EmbeddedPostgres) -> int:
    return int((server.home / "data" / "postmaster.pid").read_text().split("\n")[0])


async def _execute(url: str, statement: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()
