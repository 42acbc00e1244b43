"""Where the doctor looks: the state folder's suite, or the one that the environment names."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest

from services.doctor import auditor
from services.doctor.bounds import Bounds, configured_bounds
from services.doctor.verdict import CannotCheck, Check, Kind, Report, Status
from services.doctor.visit import plan_visit
from services.local.postgres import noted_port
from services.local.state import State

FULL = Bounds(since=None)


async def look(
    environment: Mapping[str, str], *only: str, bounds: Bounds | None = None
) -> dict[str, Check]:
    visit = plan_visit(bounds or Bounds(), only=only, environment=environment)
    return {check.name: check for check in (await visit.look()).checks}


@pytest.fixture
def deployed(auditor_url: str, tmp_path: Path) -> dict[str, str]:
    """As in a container: no state folder, addresses in variables."""
    return {
        "GLOSSA_AUDITOR_URL": auditor_url,
        "GLOSSA_STATE_DIR": str(tmp_path / "nowhere"),
        "GLOSSA_STORE_URL": "memory:///documents",
        "GLOSSA_REGISTRY_ADDRESS": "registry.example:1",
        "GLOSSA_ALLOW_PLAINTEXT": "true",
    }


async def test_a_deployment_needs_no_state_folder(deployed: Mapping[str, str]) -> None:
    found = await look(deployed, "environment", "cache", "across")

    assert "environment/state_folder" not in found
    assert found["environment/object_store"].status is Status.SOUND
    assert found["environment/registry_answers"].detail.startswith("registry.example:1 does not")
    invariants = [check for name, check in found.items() if not name.startswith("environment")]
    assert {check.status for check in invariants} == {Status.SOUND}


async def test_a_bucket_is_listed_only_when_everything_is_looked_at(
    deployed: Mapping[str, str],
) -> None:
    quick = await look(deployed, "stored")
    full = await look(deployed, "stored", bounds=FULL)

    assert {check.status for check in quick.values()} == {Status.LEFT_OUT}
    assert {check.status for check in full.values()} == {Status.SOUND}


async def test_a_database_that_is_away_leaves_the_rest_to_be_looked_at(
    deployed: Mapping[str, str],
) -> None:
    away = {**deployed, "GLOSSA_AUDITOR_URL": "postgresql://glossa_auditor:x@127.0.0.1:1/glossa"}

    found = await look(away, "cache", "versions", "object_store", "clock")

    statuses = {name: check.status for name, check in found.items()}
    known = {name for name, status in statuses.items() if status is Status.SOUND}
    assert known == {"environment/versions", "environment/object_store"}
    assert found["cache/lease_is_whole"].advice == "start the suite: `make run`"


WHO_WAITS = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass"


@pytest.mark.parametrize(
    "table", ["worker.schema_migrations", "cache.outbox", "registry.canonical_documents"]
)
async def test_a_database_that_goes_away_during_a_look_leaves_a_report(
    deployed: Mapping[str, str], admin_url: str, table: str
) -> None:
    """While it is asked about the environment, about an invariant, about what is stored."""
    only = ["stored"] if table.startswith("registry") else []
    admin = await asyncpg.connect(admin_url)
    async with asyncio.timeout(60), admin.transaction():
        await admin.execute(f"LOCK TABLE {table}")
        looking = asyncio.create_task(look(deployed, *only, bounds=FULL))
        while not (doctor := await admin.fetchval(WHO_WAITS, table)):  # noqa: ASYNC110 - it decides
            await asyncio.sleep(0.01)
        await admin.execute("SELECT pg_terminate_backend($1)", doctor)
        found = await looking
    await admin.close()

    assert found["stored/no_missing_bytes"].status is Status.UNKNOWN
    assert found["stored/no_missing_bytes"].advice == "look again"
    if not only:
        assert found["cache/refunds_are_due"].detail.startswith("the database went away")
    if table.startswith("worker"):
        assert found["environment/worker_migrations"].status is Status.UNKNOWN
        assert found["environment/clock"].detail.startswith("it went away")
        assert found["environment/object_store"].status is Status.SOUND


def test_the_database_of_a_state_folder_is_found(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.prepare()
    variables = {"GLOSSA_STATE_DIR": str(tmp_path)}
    with pytest.raises(CannotCheck, match="has no password of the auditor; start the suite"):
        auditor.auditor_url(variables)
    password = state.passwords()["auditor"]
    with pytest.raises(CannotCheck, match="there is no database in"):
        auditor.auditor_url(variables)

    state.postgres.mkdir()
    (state.postgres / "port").write_text("7")
    own = auditor.auditor_url(variables)
    another = auditor.auditor_url(
        variables | {"DATABASE_URL": "postgresql://admin:pw@db.example/main"}
    )

    assert own == f"postgresql://glossa_auditor:{password}@127.0.0.1:7/glossa"
    assert another == f"postgresql://glossa_auditor:{password}@db.example/main"


def test_a_server_that_keeps_its_data_elsewhere_is_found(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "postgres", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    assert noted_port(folder) is None
    (folder / "location").write_text(str(elsewhere))
    (elsewhere / "port").write_text("7")

    assert noted_port(folder) == 7


def test_limits_are_those_of_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOSSA_HARD_LIMIT", "4")
    monkeypatch.setenv("GLOSSA_LIMITS", '{"free": {"*": {"daily": 20}}}')
    monkeypatch.setenv("GLOSSA_MAX_ATTEMPTS", "7")
    bounds = configured_bounds(grace=Bounds.grace, since=Bounds.since)

    limits = {(one.plan, one.endpoint): (one.hard, one.daily) for one in bounds.limits}
    assert limits["free", "explain_page"] == (4, 20)
    assert limits["beta", "explain_page"] == (4, 100)
    assert bounds.max_attempts == 7

    monkeypatch.setenv("GLOSSA_SHADOW_LIMITS", "true")
    assert configured_bounds(grace=Bounds.grace, since=Bounds.since).limits == []


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        ([Status.SOUND, Status.LEFT_OUT], 0),
        ([Status.SOUND, Status.UNKNOWN], 2),
        ([Status.UNKNOWN, Status.VIOLATED], 1),
    ],
)
def test_what_is_known_to_be_violated_outweighs_what_is_unknown(
    statuses: list[Status], code: int
) -> None:
    checks = [
        Check(name="a/b", kind=Kind.INVARIANT, promise="", status=status) for status in statuses
    ]

    assert Report(checks=checks, taken_at=datetime.now(UTC), seconds=0).exit_code == code
