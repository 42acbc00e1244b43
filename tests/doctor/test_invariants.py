"""Each invariant finds the very violation it is there for, and nothing in a sound database."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from services.doctor.bounds import LONGEST_WORK, Bounds, configured_bounds
from services.doctor.examine import examine, find_violations
from services.doctor.invariant import Invariant, all_invariants
from services.doctor.verdict import CannotCheck, Status
from services.worker.metrics_store import ROLL_UP_SECONDS
from tests.doctor.plantings import MORE, PLANTINGS, Planting

# As `glossa doctor` has them, and with --full.
USUAL = configured_bounds(grace=Bounds.grace, since=Bounds.since)
FULL = replace(USUAL, since=None)

Connection = asyncpg.Connection


def test_every_invariant_is_planted_once() -> None:
    # Transactions that last long have a test of their own.
    names = {one.name for one in all_invariants()} - {"across/no_long_transactions"}

    assert set(PLANTINGS) == names


async def test_nothing_is_found_in_a_sound_past(auditor: "Connection[Any]") -> None:
    assert await find_violations(auditor, bounds=USUAL) == {}
    assert await find_violations(auditor, bounds=FULL) == {}


@pytest.mark.parametrize("name", PLANTINGS)
async def test_a_violation_is_found_by_its_own_invariant_and_no_other(
    undone: "Connection[Any]", name: str
) -> None:
    planting = PLANTINGS[name]
    await undone.execute(planting.sql)
    await undone.execute("SET LOCAL ROLE glossa_auditor")

    expected = {name, *planting.also}
    assert set(await find_violations(undone, bounds=FULL)) == expected
    assert set(await find_violations(undone, bounds=USUAL)) == expected


@pytest.mark.parametrize(("name", "planting"), MORE)
async def test_other_ways_to_break_a_promise_are_found_too(
    undone: "Connection[Any]", name: str, planting: Planting
) -> None:
    await undone.execute(planting.sql)
    await undone.execute("SET LOCAL ROLE glossa_auditor")

    assert set(await find_violations(undone, bounds=FULL)) == {name, *planting.also}


@pytest.mark.parametrize(
    "sql",
    ["GRANT glossa_quota TO glossa_worker", "ALTER ROLE glossa_auditor BYPASSRLS"],
)
async def test_a_role_that_may_become_more_is_found(undone: "Connection[Any]", sql: str) -> None:
    await undone.execute(sql)

    assert "across/roles_stay_apart" in await find_violations(undone, bounds=FULL)


async def test_what_a_role_may_not_see_is_unknown(undone: "Connection[Any]") -> None:
    """One that cannot see how old transactions are must not say that all is well."""
    await undone.execute("SET LOCAL ROLE glossa_registry")

    [check] = await examine(undone, [one for one in all_invariants() if one.needs], FULL)

    assert (check.status, check.detail) == (Status.UNKNOWN, "the role lacks pg_read_all_stats")


async def test_a_transaction_that_holds_a_snapshot_for_too_long_is_found(
    admin: "Connection[Any]", auditor: "Connection[Any]"
) -> None:
    bounds = replace(FULL, transaction=timedelta())
    assert await find_violations(auditor, bounds=bounds) == {}
    async with admin.transaction(isolation="repeatable_read"):
        await admin.fetchval("SELECT count(*) FROM cache.outbox")

        found = await find_violations(auditor, bounds=bounds)
        patient = await find_violations(auditor, bounds=FULL)

    assert set(found) == {"across/no_long_transactions"}
    assert patient == {}


@pytest.mark.parametrize("who", ["pg_dump", "glossa-doctor"])
async def test_backups_and_other_doctors_may_take_their_time(
    admin: "Connection[Any]", auditor: "Connection[Any]", who: str
) -> None:
    await admin.execute(f"SET application_name = '{who}'")
    async with admin.transaction(isolation="repeatable_read"):
        await admin.fetchval("SELECT count(*) FROM cache.outbox")

        assert await find_violations(auditor, bounds=replace(FULL, transaction=timedelta())) == {}


def test_the_longest_work_of_the_suite_is_no_violation() -> None:
    assert LONGEST_WORK.total_seconds() > ROLL_UP_SECONDS
    assert USUAL.settings()["glossa.transaction"] == f"{LONGEST_WORK.total_seconds()} seconds"


async def test_all_rows_are_counted_and_the_first_are_shown(
    admin: "Connection[Any]", auditor: "Connection[Any]"
) -> None:
    await admin.execute("UPDATE quota.accounts SET balance_units = balance_units + 1")

    [check] = [
        check
        for check in await examine(auditor, all_invariants(), USUAL)
        if check.status is Status.VIOLATED
    ]

    accounts = await admin.fetchval("SELECT count(*) FROM quota.accounts")
    assert (check.rows, len(check.examples)) == (accounts, 5)
    assert set(check.examples[0]) == {"user_id", "balance_units", "sum_of_entries"}


# Nothing is found, but only once nobody holds the lock any more.
HELD_UP = Invariant(
    name="held_up",
    promise="",
    advice="",
    sql="SELECT 1 AS found_nothing FROM (SELECT pg_advisory_xact_lock(7)::text AS locked OFFSET 0)"
    " AS held WHERE held.locked = 'never'",
)
IS_HELD_UP = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"


async def test_every_question_is_asked_of_the_same_moment(
    admin: "Connection[Any]", auditor: "Connection[Any]"
) -> None:
    """What is broken between two questions is not seen by the second."""
    [balance] = [one for one in all_invariants() if one.name.startswith("quota/balance_is_the")]
    await admin.execute("SELECT pg_advisory_lock(7)")
    asking = asyncio.create_task(examine(auditor, [HELD_UP, balance], USUAL))
    async with asyncio.timeout(60):
        while not await admin.fetchval(IS_HELD_UP):  # noqa: ASYNC110 - the database decides
            await asyncio.sleep(0.01)
    await admin.execute(PLANTINGS[balance.name].sql)
    await admin.execute("SELECT pg_advisory_unlock(7)")

    assert [check.status for check in await asking] == [Status.SOUND, Status.SOUND]
    assert set(await find_violations(auditor, bounds=USUAL)) == {balance.name}


async def test_what_cannot_be_asked_is_unknown_and_the_rest_is_answered(
    admin: "Connection[Any]", auditor: "Connection[Any]"
) -> None:
    await admin.execute("DROP TABLE cache.outbox")

    checks = await examine(auditor, all_invariants(), USUAL)

    unknown = {check.name for check in checks if check.status is Status.UNKNOWN}
    assert unknown == {"cache/refunds_are_delivered", "cache/refunds_are_due"}
    with pytest.raises(CannotCheck, match=r"cache\.outbox.* does not exist"):
        await find_violations(auditor, bounds=USUAL)


async def test_grace_is_given_to_recovery(
    admin: "Connection[Any]", auditor: "Connection[Any]"
) -> None:
    await admin.execute(PLANTINGS["cache/refunds_are_delivered"].sql)  # an hour ago

    assert await find_violations(auditor, bounds=USUAL, grace=timedelta(hours=2)) == {}
    assert await find_violations(auditor, bounds=USUAL, grace=timedelta(minutes=30)) != {}


@pytest.mark.parametrize(
    "name", ["cache/attempts_are_within_bounds", "quota/balance_is_the_sum_of_its_entries"]
)
async def test_what_is_long_past_is_looked_at_only_when_everything_is(
    admin: "Connection[Any]", auditor: "Connection[Any]", name: str
) -> None:
    await admin.execute(PLANTINGS[name].sql)
    narrow = replace(USUAL, since=timedelta(minutes=1))

    assert await find_violations(auditor, bounds=narrow) == {}
    assert set(await find_violations(auditor, bounds=FULL)) == {name}
