"""A database that is crowded, locked, pooled, read for long or full, and then is not any more."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import asyncpg
import pytest

from services.local.kept_postgres import KeptPostgres
from tests.e2e.conftest import reachable_folder
from tests.faults.house import House, open_house
from tests.faults.load import Load
from tests.faults.pooler import pooler
from tests.programs import needs

PRESSED_SECONDS = 5.0
DISK = "400m"
KNOWS_PREPARED_STATEMENTS = (1, 21)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = reachable_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0711", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_when_no_connections_are_left_nothing_is_lost(house: House) -> None:
    load = Load(house, seed=21)
    async with load.running(), AsyncExitStack() as stack:
        # As a service's own role: what is reserved for the superuser stays free.
        url = await service_address(house)
        taken = await take_all(url, stack)
        await asyncio.sleep(PRESSED_SECONDS)
        await stack.aclose()
        await load.recover()
    print(f"{taken} connections taken:", load.summary())


async def take_all(url: str, stack: AsyncExitStack) -> int:
    """Every connection there is, until the stack is closed; how many there were."""
    for taken in count():
        try:
            connection = await asyncpg.connect(url)
        except asyncpg.TooManyConnectionsError:
            return taken
        stack.push_async_callback(connection.close)
    raise AssertionError


async def service_address(house: House) -> str:
    """Quota's own way in, past its wire."""
    credentials, _, rest = house.stand.urls["quota"].rpartition("@")
    [address] = house.wires["quota>postgres"].targets
    return f"{credentials}@{address}/{rest.partition('/')[2]}"


async def test_a_lock_on_one_user_holds_up_nobody_else(house: House) -> None:
    load = Load(house, seed=22)
    async with load.running():
        await load.recover()
        connection = await asyncpg.connect(house.stand.admin_url)
        async with connection.transaction():
            await connection.execute(
                "SELECT FROM quota.accounts WHERE user_id = 'user-0' FOR UPDATE"
            )
            # Another user is served while the lock is held, again and again.
            for _ in range(5):
                await load.recover()
        await connection.close()
    print(load.summary())


async def test_a_long_snapshot_holds_up_nobody(house: House) -> None:
    load = Load(house, seed=23)
    connection = await asyncpg.connect(house.stand.admin_url)
    async with load.running(), connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM cache.generations")
        for _ in range(10):
            await load.recover()
    await connection.close()
    print(load.summary())


@needs("pgbouncer", package="pgbouncer")
async def test_everything_works_through_a_pooler_in_transaction_mode(
    house: House, folder: Path
) -> None:
    [address] = house.wires["quota>postgres"].targets
    program = shutil.which("pgbouncer")
    assert program is not None
    if version_of(program) < KNOWS_PREPARED_STATEMENTS:
        pytest.skip("this PgBouncer is older than 1.21 and knows no prepared statements")
    async with pooler(
        program,
        folder,
        server_port=int(address.rpartition(":")[2]),
        passwords=house.stand.plan.state.passwords(),
    ) as pooled:
        house.move_database(pooled)
        load = Load(house, seed=24)
        async with load.running():
            for _ in range(10):
                await load.recover()
        print(load.summary())
        house.move_database(address)


async def test_a_full_disk_stops_work_and_space_brings_it_back(small_disk: Path) -> None:
    async with open_house(postgres=KeptPostgres(small_disk / "pg", print)) as house:
        load = Load(house, seed=25)
        async with load.running():
            await load.recover()
            ballast = small_disk / "ballast"
            with ballast.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free_bytes(small_disk))
            before = load.log.retries
            await fill_the_log(house)
            async with asyncio.timeout(60):
                while load.log.retries == before:  # noqa: ASYNC110 - a number gives no event
                    await asyncio.sleep(0.05)
            await asyncio.sleep(PRESSED_SECONDS)
            ballast.unlink()
            await load.recover()
        print(load.summary())


def version_of(program: str) -> tuple[int, ...]:
    told = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    return tuple(int(part) for part in told.stdout.split()[1].split("."))


async def fill_the_log(house: House) -> None:
    """Segments that were made before are used up, until the next one finds no room."""
    async with asyncio.timeout(60):
        while True:
            try:
                await house.rows("SELECT pg_switch_wal(), pg_logical_emit_message(false, 'x', 'x')")
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                return


def free_bytes(folder: Path) -> int:
    told = os.statvfs(folder)
    return told.f_bavail * told.f_frsize
