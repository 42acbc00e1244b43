"""PgBouncer in transaction mode in front of a server."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from services.local.account import server_account
from services.local.tether import tethered

# What it does not know it would refuse; behind a pooler the roles carry these settings.
OURS = "statement_timeout,lock_timeout,idle_in_transaction_session_timeout"
SETTINGS = """
[databases]
glossa = host=127.0.0.1 port={server_port} dbname=glossa
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = 10
max_prepared_statements = 500
ignore_startup_parameters = {ours}
"""


@asynccontextmanager
async def pooler(
    program: str, folder: Path, *, server_port: int, passwords: Mapping[str, str]
) -> AsyncIterator[str]:
    """Its address, until the block ends."""
    account, port = server_account(), _free_port()
    users = "".join(f'"glossa_{name}" "{word}"\n' for name, word in passwords.items())
    (folder / "users.txt").write_text(users)
    settings = SETTINGS.format(server_port=server_port, port=port, folder=folder, ours=OURS)
    (folder / "pgbouncer.ini").write_text(settings)
    process = await asyncio.create_subprocess_exec(
        *tethered(
            [program, "-q", str(folder / "pgbouncer.ini")],
            on_parent_death=signal.SIGKILL,
            uid=account.uid,
            gid=account.gid,
        )
    )
    try:
        await _until_listening(port)
        yield f"127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _until_listening(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return
