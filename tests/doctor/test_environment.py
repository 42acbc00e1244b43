"""Every check of the environment is green where all is well, and red for what it is there for."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from services.doctor import environment
from services.doctor.environment import Probe, Surroundings, probes, service_probes
from services.doctor.verdict import CannotCheck, Check, Status
from services.local.free_ports import free_ports
from services.local.state import State
from tests.suite import Suite

Connection = asyncpg.Connection


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    state = State(tmp_path / "state")
    state.prepare()
    return Surroundings(state=state, addresses={}, store_url=state.objects.as_uri())


async def look(around: Surroundings, auditor: "Connection[Any]", name: str) -> Check:
    [probe] = [probe for probe in probes(around, lambda: auditor) if probe.name == name]
    return await probe.check()


async def test_all_is_well(around: Surroundings, auditor: "Connection[Any]") -> None:
    checks = [await probe.check() for probe in probes(around, lambda: auditor)]

    assert {check.name: check.detail for check in checks if check.status is not Status.SOUND} == {}
    assert len({check.name for check in checks}) == len(checks)


@pytest.mark.parametrize(
    ("constant", "value", "name"),
    [
        ("OLDEST_PYTHON", (99,), "versions"),
        ("OLDEST_POSTGRES", 99, "postgres"),
        ("FREE_BYTES", 1 << 62, "disk_state"),
        ("FREE_BYTES", 1 << 62, "disk_objects"),
    ],
)
async def test_too_old_and_too_small_is_unfit(
    around: Surroundings,
    auditor: "Connection[Any]",
    monkeypatch: pytest.MonkeyPatch,
    constant: str,
    value: Any,
    name: str,
) -> None:
    monkeypatch.setattr(environment, constant, value)

    check = await look(around, auditor, name)

    assert check.status is Status.VIOLATED
    assert check.detail
    assert check.advice


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("DELETE FROM worker.schema_migrations WHERE number = 2", "not applied: 0002"),
        (
            "INSERT INTO worker.schema_migrations (number, name, checksum) VALUES (9999, 'x', 'x')",
            "unknown to this version: 9999",
        ),
        (
            "UPDATE worker.schema_migrations SET checksum = 'x' WHERE number = 3",
            "edited since they were applied: 0003",
        ),
    ],
)
async def test_tables_of_another_version_are_unfit(
    around: Surroundings, admin: "Connection[Any]", auditor: "Connection[Any]", sql: str, found: str
) -> None:
    await admin.execute(sql)

    check = await look(around, auditor, "worker_migrations")

    assert (check.status, check.detail) == (Status.VIOLATED, found)
    assert (await look(around, auditor, "cache_migrations")).status is Status.SOUND


async def test_a_schema_without_tables_is_unknown(
    around: Surroundings, admin: "Connection[Any]", auditor: "Connection[Any]"
) -> None:
    await admin.execute("DROP SCHEMA worker CASCADE")

    check = await look(around, auditor, "worker_migrations")

    assert (check.status, check.advice) == (
        Status.UNKNOWN,
        "apply the migrations: `glossa migrate`",
    )


@pytest.mark.parametrize(("wrong_by", "words"), [(7200, "behind"), (-7200, "ahead of")])
async def test_a_clock_that_is_wrong_is_unfit(
    around: Surroundings,
    auditor: "Connection[Any]",
    monkeypatch: pytest.MonkeyPatch,
    wrong_by: int,
    words: str,
) -> None:
    class Clock:
        """This machine's, two hours off."""

        perf_counter: Callable[[], float] = time.perf_counter

        def time(self) -> float:
            return time.time() + wrong_by

    monkeypatch.setattr(environment, "time", Clock())

    check = await look(around, auditor, "clock")

    assert check.status is Status.VIOLATED
    assert f"s {words} this machine" in check.detail


async def test_an_object_store_that_refuses_is_unfit(
    around: Surroundings, auditor: "Connection[Any]"
) -> None:
    assert around.state is not None
    for number in range(256):  # whichever folder it wants, something is in the way
        (around.state.objects / f"{number:02x}").write_text("in the way")

    check = await look(around, auditor, "object_store")

    assert check.status is Status.VIOLATED
    assert "GLOSSA_STORE_URL" in check.advice


async def test_a_state_folder_open_to_others_is_unfit(
    around: Surroundings, auditor: "Connection[Any]"
) -> None:
    assert around.state is not None
    around.state.root.chmod(0o755)

    check = await look(around, auditor, "state_folder")

    assert (check.status, check.advice) == (Status.VIOLATED, f"chmod 711 {around.state.root}")


async def test_what_is_not_there_is_unknown_with_the_next_step(
    around: Surroundings, auditor: "Connection[Any]"
) -> None:
    assert around.state is not None
    shutil.rmtree(around.state.root)

    checks = {
        name: await look(around, auditor, name)
        for name in ("state_folder", "disk_state", "disk_objects", "object_store")
    }

    assert {name: check.status for name, check in checks.items()} == dict.fromkeys(
        checks, Status.UNKNOWN
    )
    assert all(check.advice for check in checks.values())
    assert not around.state.root.exists()


async def test_without_a_database_the_rest_is_still_looked_at(around: Surroundings) -> None:
    def away() -> Any:
        raise CannotCheck("nobody answers", next_step="start it")

    checks = [await probe.check() for probe in probes(around, away)]

    unknown = {check.name.partition("/")[2] for check in checks if check.status is Status.UNKNOWN}
    migrations = {f"{schema}_migrations" for schema in ("registry", "cache", "quota", "worker")}
    assert unknown == {"postgres", "clock"} | migrations
    assert len(checks) > len(unknown)


async def test_services_answer_or_are_told_to_be_away(suite: Suite) -> None:
    async def statuses(found: list[Probe]) -> set[Status]:
        return {check.status for check in await asyncio.gather(*(one.check() for one in found))}

    assert await statuses(service_probes(suite.addresses)) == {Status.SOUND}
    away = service_probes(free_ports().addresses())
    assert await statuses(away) == {Status.UNKNOWN}
    assert len(away) == 4
