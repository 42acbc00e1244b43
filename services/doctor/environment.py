"""What the suite stands on: settings, versions, migrations, clocks, disks, services, the store."""

import importlib.metadata
import platform
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from services.doctor.auditor import LOST
from services.doctor.stored_bytes import open_store, round_trip, store_folder
from services.doctor.verdict import CannotCheck, Check, Kind, Status, Unfit
from services.local.bootstrap import PROJECT
from services.local.errors import AdvisedError
from services.local.layout import SERVICES
from services.local.processes import is_serving
from services.local.state import State
from services.runtime.channel import open_channel
from services.runtime.errors import GlossaError
from services.runtime.migrate import read_migrations
from services.runtime.server import CannotStart
from services.runtime.tls import Mesh, Tls, TlsMisconfigured

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection

OLDEST_PYTHON = (3, 11)
OLDEST_POSTGRES = 15
CLOCK_SECONDS = 1.0
FREE_BYTES = 1 << 30
LIST_MIGRATIONS = "SELECT number, checksum FROM {schema}.schema_migrations"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where to look; whatever there is none of is not looked at."""

    state: State | None
    addresses: Mapping[str, str]
    store_url: str
    tls: Tls | Mesh | None = None


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One thing to look at; `look` says what it found, or raises what is wrong."""

    name: str
    promise: str
    look: Callable[[], Awaitable[str]]

    @property
    def check_name(self) -> str:
        return f"environment/{self.name}"

    async def check(self) -> Check:
        began = time.perf_counter()
        status, detail, advice = Status.SOUND, "", ""
        try:
            detail = await self.look()
        except Unfit as error:
            status, detail, advice = Status.VIOLATED, error.message, error.next_step
        except AdvisedError as error:
            status, detail, advice = Status.UNKNOWN, error.message, error.next_step
        except LOST as error:
            status, detail, advice = Status.UNKNOWN, f"it went away: {error}", "look again"
        return Check(
            name=self.check_name,
            kind=Kind.ENVIRONMENT,
            promise=self.promise,
            status=status,
            detail=detail,
            advice=advice,
            seconds=time.perf_counter() - began,
        )


def probes(around: Surroundings, connect: Callable[[], "Connection"]) -> list[Probe]:
    """All but the services; `connect` gives the database, or says why there is none."""
    state = around.state
    folders = [state.root] if state is not None else []
    folders += [folder] if (folder := store_folder(around.store_url)) is not None else []
    return [
        Probe(name="versions", promise="Python and Glossa are recent enough.", look=look_at_python),
        *([_state_folder(state)] if state is not None else []),
        Probe(
            name="postgres",
            promise=f"PostgreSQL is {OLDEST_POSTGRES} or newer.",
            look=lambda: look_at_postgres(connect()),
        ),
        *(_migrations(schema, connect) for schema in SERVICES),
        Probe(
            name="clock",
            promise=f"This machine and the database agree on the time to {CLOCK_SECONDS:.0f} s.",
            look=lambda: look_at_clock(connect()),
        ),
        *(_disk(folder) for folder in dict.fromkeys(folders)),
        Probe(
            name="object_store",
            promise="What is put into the object store can be read and deleted.",
            look=lambda: look_at_store(around.store_url),
        ),
    ]


def service_probes(around: Surroundings) -> list[Probe]:
    """Whoever is away is waited for, so these are better made at once."""
    return [_service(service, address, around.tls) for service, address in around.addresses.items()]


async def look_at_python() -> str:
    found = f"Python {platform.python_version()}, Glossa {importlib.metadata.version('glossa')}"
    if sys.version_info < OLDEST_PYTHON:
        raise Unfit(found, next_step="install Python 3.11 or newer: `make PYTHON=python3.12 setup`")
    return found


async def look_at_state(state: State) -> str:
    if not state.signing_key_file.is_file():
        raise CannotCheck(
            f"there is no suite in {state.root}",
            next_step="start one: `make run`, or set GLOSSA_STATE_DIR to its folder",
        )
    if state.root.stat().st_mode & 0o066:
        raise Unfit(f"others may look into {state.root}", next_step=f"chmod 711 {state.root}")
    return str(state.root)


async def look_at_service(address: str, tls: Tls | Mesh | None) -> str:
    # Asked as every client asks; health needs no token.
    try:
        opened = open_channel(address, _NoToken(), tls=tls)
    except TlsMisconfigured as error:
        raise CannotCheck(str(error), next_step="deploy/README.md tells of GLOSSA_TLS_*") from None
    async with opened as channel:
        if not await is_serving(channel):
            raise CannotCheck(f"{address} does not answer", next_step="start it: `make run`")
    return address


async def look_at_postgres(connection: "Connection") -> str:
    written: str = await connection.fetchval("SHOW server_version")
    found = f"PostgreSQL {written.split(maxsplit=1)[0]}"
    if connection.get_server_version().major < OLDEST_POSTGRES:
        raise Unfit(found, next_step=f"upgrade to {OLDEST_POSTGRES} or newer")
    return found


async def look_at_migrations(connection: "Connection", schema: str) -> str:
    known = {
        migration.number: migration.checksum
        for migration in read_migrations(PROJECT / "services" / schema / "migrations")
    }
    try:
        rows = await connection.fetch(LIST_MIGRATIONS.format(schema=schema))
    except asyncpg.PostgresError as error:
        raise CannotCheck(str(error), next_step="apply the migrations: `glossa migrate`") from None
    applied = {row["number"]: row["checksum"] for row in rows}
    if missing := sorted(known.keys() - applied.keys()):
        raise Unfit(f"not applied: {_numbers(missing)}", next_step="`glossa migrate`")
    if unknown := sorted(applied.keys() - known.keys()):
        newer = "a newer version has been here: run that one, or restore a backup"
        raise Unfit(f"unknown to this version: {_numbers(unknown)}", next_step=newer)
    if edited := [number for number in known if known[number] != applied[number]]:
        raise Unfit(
            f"edited since they were applied: {_numbers(edited)}", next_step="restore the files"
        )
    return f"{len(applied)} applied"


async def look_at_clock(connection: "Connection") -> str:
    before = time.time()
    theirs: float = await connection.fetchval(
        "SELECT extract(epoch FROM clock_timestamp())::float8"
    )
    after = time.time()
    # They looked at some moment of the round trip.
    ahead = theirs - after if theirs > after else min(0.0, theirs - before)
    if abs(ahead) > CLOCK_SECONDS:
        way = "ahead of" if ahead > 0 else "behind"
        raise Unfit(
            f"the database is {abs(ahead):.1f} s {way} this machine",
            next_step="let both follow the same time server (NTP)",
        )
    return f"{abs(ahead) * 1000:.0f} ms apart"


async def look_at_disk(folder: Path) -> str:
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        raise CannotCheck(f"{folder}: {error.strerror}", next_step="start the suite") from None
    found = f"{usage.free / (1 << 30):.1f} GiB free at {folder}"
    if usage.free < FREE_BYTES:
        raise Unfit(found, next_step="make room: `glossa gc`, or a larger disk")
    return found


async def look_at_store(store_url: str) -> str:
    async with AsyncExitStack() as stack:
        try:
            objects = await open_store(store_url, stack)
            await round_trip(objects)
        except (GlossaError, CannotStart) as error:
            advice = "check GLOSSA_STORE_URL, and the rights and keys it needs"
            raise Unfit(str(error), next_step=advice) from None
    return "put, got and deleted"


def _state_folder(state: State) -> Probe:
    return Probe(
        name="state_folder",
        promise="The suite's keys and passwords are there, and nobody else's business.",
        look=lambda: look_at_state(state),
    )


def _service(service: str, address: str, tls: Tls | Mesh | None) -> Probe:
    return Probe(
        name=f"{service}_answers",
        promise=f"The {service} service is healthy.",
        look=lambda: look_at_service(address, tls),
    )


def _migrations(schema: str, connect: Callable[[], "Connection"]) -> Probe:
    return Probe(
        name=f"{schema}_migrations",
        promise=f"The tables of {schema} are those of this version.",
        look=lambda: look_at_migrations(connect(), schema),
    )


def _disk(folder: Path) -> Probe:
    return Probe(
        name=f"disk_{folder.name.strip('.')}",
        promise="There is room for what comes.",
        look=lambda: look_at_disk(folder),
    )


def _numbers(numbers: list[int]) -> str:
    return ", ".join(f"{number:04}" for number in numbers)


class _NoToken:
    """Health is open."""

    def token(self) -> str:
        return ""
