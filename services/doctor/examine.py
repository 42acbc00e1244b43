"""Asks the database every question in one snapshot: what it says at one moment fits together."""

import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from services.doctor.auditor import connected
from services.doctor.bounds import AT_REST, Bounds
from services.doctor.invariant import Invariant, all_invariants, is_meant
from services.doctor.verdict import CannotCheck, Check, Kind, Status

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = asyncpg.Connection[Any] | PoolConnectionProxy[Any]
else:
    Connection = asyncpg.Connection

EXAMPLES = 5
# Everything there ever was takes its time; what is new does not.
FULL_SECONDS = 600
QUICK_SECONDS = 30

# $3 how far back to look; null is for ever.
SET = """
SELECT set_config(name, value, true) FROM unnest($1::text[], $2::text[]) AS setting (name, value)
UNION ALL
SELECT set_config('glossa.since', coalesce((now() - $3::interval)::text, '-infinity'), true)
"""
MAY = "SELECT pg_catalog.pg_has_role(current_user, $1, 'USAGE')"
# Compiling takes longer than these queries, and memory spares their sums the disk.
SESSION = {"jit": "off", "work_mem": "64MB"}


async def find_violations(
    where: "str | Connection",
    *,
    grace: timedelta | None = None,
    bounds: Bounds = AT_REST,
    only: Collection[str] = (),
) -> dict[str, list[str]]:
    """Rows that violate a promise, by the name of the invariant; nothing while all is well.

    `where` is an address or a connection outside any transaction. Everything there is is looked
    at, and recovery gets no time beyond `grace`. For tests: what cannot be checked is an error.
    """
    if grace is not None:
        bounds = Bounds(**vars(bounds) | {"grace": grace})
    chosen = [one for one in all_invariants() if is_meant(one.name, only)]
    async with _connection(where) as connection:
        checks = await examine(connection, chosen, bounds)
    for check in checks:
        if check.status is Status.UNKNOWN:
            raise CannotCheck(f"{check.name}: {check.detail}", next_step=check.advice)
    return {
        check.name: [str(dict(row)) for row in check.examples] for check in checks if check.rows
    }


async def examine(
    connection: "Connection", invariants: Sequence[Invariant], bounds: Bounds
) -> list[Check]:
    """Each invariant, all of them as of the same moment."""
    async with questions(connection, bounds):
        return [await _ask(connection, invariant) for invariant in invariants]


@asynccontextmanager
async def questions(connection: "Connection", bounds: Bounds) -> AsyncIterator[None]:
    """One moment to ask about, and what the queries are held against."""
    seconds = FULL_SECONDS if bounds.since is None else QUICK_SECONDS
    settings = {**SESSION, "statement_timeout": f"{seconds}s", **bounds.settings()}
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await connection.execute(SET, list(settings), list(settings.values()), bounds.since)
        yield


async def _ask(connection: "Connection", invariant: Invariant) -> Check:
    began = time.perf_counter()
    try:
        # A savepoint: one question that cannot be answered must not end the snapshot.
        async with connection.transaction():
            if invariant.needs and not await connection.fetchval(MAY, invariant.needs):
                return _unknown(invariant, f"the role lacks {invariant.needs}")
            found = await connection.fetch(_counted(invariant.sql), timeout=FULL_SECONDS)
    except asyncpg.PostgresError as error:
        return _unknown(invariant, str(error))
    rows = found[0]["found"] if found else 0
    return Check(
        name=invariant.name,
        kind=Kind.INVARIANT,
        promise=invariant.promise,
        status=Status.VIOLATED if rows else Status.SOUND,
        advice=invariant.advice,
        rows=rows,
        examples=[{name: value for name, value in row.items() if name != "found"} for row in found],
        seconds=time.perf_counter() - began,
    )


def _counted(sql: str) -> str:
    """All violating rows counted, the first of them shown.

    Materialized, so that the plan is made for all rows: one made for the first few would look for
    them one by one, and there are none.
    """
    return (
        f"WITH violating AS MATERIALIZED (\n{sql}\n)"
        f" SELECT *, count(*) OVER () AS found FROM violating LIMIT {EXAMPLES}"
    )


def _unknown(invariant: Invariant, why: str) -> Check:
    return Check(
        name=invariant.name,
        kind=Kind.INVARIANT,
        promise=invariant.promise,
        status=Status.UNKNOWN,
        detail=why,
        advice="apply deploy/postgres/roles.sql and the migrations: `glossa migrate`",
    )


@asynccontextmanager
async def _connection(where: "str | Connection") -> AsyncIterator["Connection"]:
    if isinstance(where, str):
        async with connected(where) as connection:
            yield connection
    else:
        yield where
