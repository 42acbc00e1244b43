"""`glossa up` as a person uses it: real processes, real signals, nothing left behind."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.local.bootstrap import ensure_database
from services.local.free_ports import free_ports
from services.local.layout import SERVICES, Ports
from services.local.postgres import EmbeddedPostgres
from services.local.supervisor import plan_from, service_environment
from tests.local.processes import all_ended, command_of, descendants
from tests.local.up import GLOSSA, SECONDS, environment, started


def up_once(folder: Path, ports: Ports, **more: str) -> str:
    """Run `up` where it cannot run; its only line."""
    result = subprocess.run(
        [*GLOSSA, "up"],
        env=environment(folder, ports, **more),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert result.returncode == 1
    [line] = result.stderr.strip().split("\n")
    return line


def read_page(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return str(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return str(error.read())


@pytest.fixture
def taken_ports() -> Iterator[Ports]:
    ports = free_ports()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", ports.port("cache")))
        listener.listen()
        yield ports


async def test_the_suite_comes_up_heals_and_goes_away_on_ctrl_c(folder: Path) -> None:
    async with asyncio.timeout(SECONDS), started(folder) as up:
        assert await up.answers()
        assert await up.asks() > 0
        page = f"http://{up.ports.metrics_address('worker')}/admin/metrics"
        assert page in up.screen
        assert "token --admin --email admin@localhost" in up.screen
        assert "Sign in" in await asyncio.to_thread(read_page, page)
        for service in ("registry", "cache", "quota", "worker"):
            assert up.ports.address(service) in up.screen
            assert up.ports.metrics_address(service) in up.screen

        os.kill(up.pid_of("services.quota"), signal.SIGKILL)
        await up.reads("quota is back")
        os.kill(up.pid_of("bin/postgres -D"), signal.SIGKILL)
        await up.reads("postgres is back")
        assert await up.answers()
        assert await up.asks() > 0

        children = descendants(up.process.pid)
        up.process.send_signal(signal.SIGINT)
        assert await up.process.wait() == 0
        assert not any(is_left(children))
        assert not (up.state.root / "suite.json").exists()


def is_left(pids: set[int]) -> list[str]:
    return [command_of(pid) for pid in pids if Path(f"/proc/{pid}").exists()]


async def test_killing_it_outright_leaves_nothing_and_the_next_start_keeps_the_data(
    folder: Path,
) -> None:
    async with asyncio.timeout(SECONDS):
        async with started(folder) as up:
            before = (up.state.postgres / "password").read_text()
            children = descendants(up.process.pid)
            assert len(children) > 5
            up.process.kill()
            await all_ended(children)
        async with started(folder) as up:
            assert await up.asks() > 0
            assert (up.state.postgres / "password").read_text() == before


async def test_killing_the_make_that_started_it_leaves_nothing(folder: Path) -> None:
    makefile = folder / "Makefile"
    makefile.write_text(f"run:\n\t@exec {' '.join(GLOSSA)} up\n")
    command = ["make", "--silent", "-f", str(makefile), "run"]

    async with asyncio.timeout(SECONDS), started(folder, command=command) as up:
        children = descendants(up.process.pid)
        assert len(children) > 6
        up.process.kill()
        await all_ended(children)


async def test_a_second_suite_over_the_same_folder_is_told_so(folder: Path) -> None:
    async with asyncio.timeout(SECONDS), started(folder) as up:
        line = await asyncio.to_thread(up_once, folder, free_ports())

        assert line == (
            f"error: a suite is running over {up.state.root} already; set GLOSSA_STATE_DIR, "
            "GLOSSA_PORT_BASE and GLOSSA_METRICS_PORT_BASE to run another"
        )
        assert await up.answers()


async def test_an_existing_server_is_used_when_database_url_names_one(
    folder: Path, cluster: EmbeddedPostgres
) -> None:
    url = await ensure_database(cluster.url, "existing")

    async with asyncio.timeout(SECONDS), started(folder, DATABASE_URL=url) as up:
        assert await up.asks() > 0
        assert f"127.0.0.1:{cluster.port}/existing" in up.screen
        assert not up.state.postgres.exists()
        password = url.split(":")[2].partition("@")[0]
        for pid in descendants(up.process.pid):
            assert password not in command_of(pid)


async def test_migrate_tells_machines_what_it_applied_where(
    folder: Path, cluster: EmbeddedPostgres
) -> None:
    url = await ensure_database(cluster.url, "migrated")
    result = await asyncio.to_thread(
        subprocess.run,
        [*GLOSSA, "migrate", "--json"],
        env=environment(folder, free_ports(), DATABASE_URL=url),
        capture_output=True,
        check=True,
        timeout=SECONDS,
    )

    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["type"], line["schema"]) for line in lines] == [
        ("migrate", service) for service in SERVICES
    ]
    assert lines[0]["applied"][0].startswith("0001_")


def test_a_service_is_given_only_the_secrets_it_needs(folder: Path) -> None:
    secrets = {"DATABASE_URL": "postgresql://admin", "OPENAI_API_KEY": "sk"}
    secrets["GLOSSA_AUDITOR_URL"] = "postgresql://auditor"
    plan = plan_from(environment(folder, free_ports()) | secrets)
    plan.state.prepare()
    given = {name: service_environment(plan, name, f"own-{name}") for name in SERVICES}

    assert all("DATABASE_URL" not in variables for variables in given.values())
    assert all("GLOSSA_AUDITOR_URL" not in variables for variables in given.values())
    assert {name for name in SERVICES if "OPENAI_API_KEY" in given[name]} == {"cache", "worker"}
    assert given["quota"]["GLOSSA_DATABASE_URL"] == "own-quota"
    signs = "GLOSSA_CALLBACK_SECRET"
    assert {name for name in SERVICES if signs in given[name]} == {"registry"}
    assert service_environment(plan, "registry", "again")[signs] == given["registry"][signs]


def test_only_the_worker_is_told_who_may_see_the_pages(folder: Path) -> None:
    names = ("ADMIN_EMAILS", "GLOSSA_DASHBOARD_DATABASE_URL")
    plan = plan_from(environment(folder, free_ports()))
    other = plan_from(environment(folder, free_ports(), ADMIN_EMAILS="a@b.org", **{names[1]: "x"}))
    nobody = plan_from(environment(folder, free_ports(), ADMIN_EMAILS=""))
    plan.state.prepare()

    for service in SERVICES:
        given = service_environment(other, service, "own", "reading")
        expected = ["a@b.org", "reading"] if service == "worker" else [None, None]
        assert [given.get(name) for name in names] == expected
    assert service_environment(plan, "worker", "own")["ADMIN_EMAILS"] == "admin@localhost"
    assert service_environment(nobody, "worker", "own")["ADMIN_EMAILS"] == ""


def test_a_taken_port_is_told_before_anything_starts(folder: Path, taken_ports: Ports) -> None:
    line = up_once(folder, taken_ports)

    assert line == (
        f"error: port {taken_ports.port('cache')} is taken by another program; "
        "set GLOSSA_PORT_BASE to use others"
    )
    assert not (folder / "state" / "postgres").exists()


def test_a_taken_metrics_port_names_its_own_setting(folder: Path, taken_ports: Ports) -> None:
    ports = Ports(base=free_ports().base, metrics_base=taken_ports.base)

    assert "set GLOSSA_METRICS_PORT_BASE to use others" in up_once(folder, ports)


def test_port_ranges_that_overlap_are_refused_by_both_names(folder: Path) -> None:
    base = free_ports().base

    line = up_once(folder, Ports(base=base, metrics_base=base + 3))

    assert line == (
        f"error: the ports from GLOSSA_PORT_BASE={base} and "
        f"GLOSSA_METRICS_PORT_BASE={base + 3} on overlap; set them at least 4 apart"
    )
    assert not (folder / "state" / "postgres").exists()


def test_a_broken_database_url_is_one_sentence_without_the_password(folder: Path) -> None:
    line = up_once(folder, free_ports(), DATABASE_URL="postgresql://u:sesame@127.0.0.1:1/x")

    assert line == (
        "error: cannot connect to the database at 127.0.0.1:1/x: connection refused; "
        "is PostgreSQL running there? unset DATABASE_URL to use the embedded one"
    )


def test_a_service_that_cannot_start_is_told_with_its_own_words(folder: Path) -> None:
    line = up_once(folder, free_ports(), GLOSSA_UNITS_PER_PERIOD="many")

    assert "quota cannot start: GLOSSA_UNITS_PER_PERIOD" in line
    assert line.endswith(f"see {folder}/state/logs/quota.log")
