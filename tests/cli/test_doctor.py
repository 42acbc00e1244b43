"""`glossa doctor` against a real suite: what people see, what machines read, and how it exits."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.doctor.invariant import all_invariants
from services.local.state import State
from tests.cli.test_commands import glossa, json_lines, lecture, module_folder
from tests.e2e.conftest import admin_url
from tests.local.up import GLOSSA, Up, environment, started

__all__ = ["lecture", "module_folder"]  # fixtures

PLANT = "UPDATE quota.accounts SET balance_units = balance_units + 1 WHERE user_id = 'dora'"
MEND = "UPDATE quota.accounts SET balance_units = balance_units - 1 WHERE user_id = 'dora'"
BALANCE = "quota/balance_is_the_sum_of_its_entries"


@pytest.fixture(scope="module")
async def up(module_folder: Path) -> AsyncIterator[Up]:
    async with started(module_folder) as up:
        yield up


@pytest.fixture
async def planted(up: Up, lecture: Path) -> AsyncIterator[None]:
    """One unit that came from nowhere, until the end of the test."""
    assert glossa(up, "explain", str(lecture), "--user", "dora").returncode == 0
    admin = await asyncpg.connect(admin_url(up.state))
    assert await admin.execute(PLANT) == "UPDATE 1"
    yield
    await admin.execute(MEND)
    await admin.close()


def test_a_suite_at_work_is_well(up: Up, lecture: Path) -> None:
    assert glossa(up, "explain", str(lecture), "--user", "ann").returncode == 0

    seen = glossa(up, "doctor", "--full")

    assert (seen.returncode, seen.stderr) == (0, "")
    assert "all is well: " in seen.stdout
    assert "single_flight_per_key" in seen.stdout
    assert "A page is made by one generation" in seen.stdout
    assert str(up.state.root) in seen.stdout


def test_machines_read_one_object_for_each_check(up: Up) -> None:
    *checks, summary = json_lines(glossa(up, "doctor", "--json"))

    kinds = {check["type"] for check in checks}
    names = {check["name"] for check in checks if check["type"] == "invariant"}
    stored = {"stored/no_missing_bytes", "stored/no_orphan_bytes"}
    assert kinds == {"invariant", "environment"}
    assert names == {one.name for one in all_invariants()} | stored
    assert all(
        set(check)
        == {
            "type", "name", "status", "promise", "detail", "advice", "rows", "examples", "seconds"
        }
        for check in checks
    )  # fmt: skip
    assert (summary["type"], summary["exit_code"], summary["sound"]) == ("summary", 0, len(checks))


def test_a_violation_is_shown_with_its_rows_and_what_to_do(up: Up, planted: None) -> None:
    seen = glossa(up, "doctor")
    found = [*map(json.loads, glossa(up, "doctor", "--json").stdout.splitlines())]

    assert seen.returncode == 1
    assert "not all is well" in seen.stdout
    assert "user_id=dora" in seen.stdout
    assert "glossa ledger --user ID" in " ".join(seen.stdout.split())
    [violated] = [one for one in found if one.get("status") == "violated"]
    assert (violated["name"], violated["rows"]) == (BALANCE, 1)
    assert violated["examples"][0]["user_id"] == "dora"
    assert found[-1]["exit_code"] == 1


def test_only_what_is_asked_for_is_looked_at(up: Up, planted: None) -> None:
    elsewhere = glossa(up, "doctor", "--only", "cache", "--only", "clock", "--json")
    here = glossa(up, "doctor", "--only", "balance_is_the_sum_of_its_entries", "--json")

    assert elsewhere.returncode == 0
    schemas = {one["name"].partition("/")[0] for one in json_lines(elsewhere)[:-1]}
    assert schemas == {"cache", "environment"}
    assert here.returncode == 1
    assert len(here.stdout.splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "nothing"], "there is no check 'nothing'; `glossa doctor --list`"),
        (["--grace", "soon"], "'soon' is no lifetime"),
        (["--since", "0s"], "'0s' is no lifetime"),
        (["--metrics-port", "0"], "add --watch 60"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    up: Up, arguments: list[str], words: str
) -> None:
    refused = glossa(up, "doctor", *arguments)

    assert (refused.returncode, refused.stdout) == (2, "")
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_every_promise_is_listed_with_what_to_do(up: Up) -> None:
    people = glossa(up, "doctor", "--list").stdout
    machines = json_lines(glossa(up, "doctor", "--list", "--json"))

    assert len(machines) == len(all_invariants()) + 2
    assert all(one["promise"] and one["advice"] for one in machines)
    assert all(one["name"] in people for one in machines)


def test_settings_that_services_would_refuse_are_told(up: Up) -> None:
    variables = environment(up.state.root.parent, up.ports, GLOSSA_HARD_LIMIT="many")
    told = subprocess.run(
        [*GLOSSA, "doctor"], env=variables, capture_output=True, text=True, check=False
    )

    assert told.returncode == 2
    assert "GLOSSA_HARD_LIMIT: " in told.stderr
    assert told.stderr.count("\n") == 1


def test_without_a_suite_the_next_step_is_told_and_nothing_is_made(tmp_path: Path, up: Up) -> None:
    variables = environment(tmp_path, up.ports)
    seen = subprocess.run(
        [*GLOSSA, "doctor"], env=variables, capture_output=True, text=True, check=False
    )

    assert (seen.returncode, seen.stderr) == (2, "")
    assert "not all could be checked" in seen.stdout
    assert "start the suite: `make run`" in " ".join(seen.stdout.split())
    assert not (tmp_path / "state").exists()


async def test_a_database_that_is_away_or_refuses_is_told_without_the_password(
    up: Up,
) -> None:
    port = (up.state.postgres / "port").read_text()
    for url, words in [
        ("postgresql://glossa_auditor:sesame@127.0.0.1:1/glossa", "connection refused"),
        (f"postgresql://glossa_auditor:sesame@127.0.0.1:{port}/glossa", "roles.sql"),
        ("sesame", "GLOSSA_AUDITOR_URL is malformed"),
    ]:
        variables = environment(up.state.root.parent, up.ports, GLOSSA_AUDITOR_URL=url)
        process = await asyncio.create_subprocess_exec(
            *GLOSSA, "doctor", env=variables, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        told = " ".join(said.decode().split())
        assert process.returncode == 2
        assert words in told
        assert "sesame" not in told


async def test_watching_looks_again_and_exports_what_it_finds(up: Up, planted: None) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *GLOSSA[1:],
        *("doctor", "--watch", "0.1", "--metrics-port", "0", "--json"),
        env=environment(up.state.root.parent, up.ports),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            address = (await process.stderr.readline()).decode().split()[-1]
            summaries = [await next_summary(process.stdout) for _ in range(2)]
            metrics = await asyncio.to_thread(scrape, address)
    finally:
        os.kill(process.pid, signal.SIGINT)
        await process.communicate()

    assert [one["violated"] for one in summaries] == [1, 1]
    assert metrics["glossa_doctor_violations", BALANCE] == 1
    assert metrics["glossa_doctor_violations", "cache/lease_is_whole"] == 0
    assert metrics["glossa_doctor_unknown_checks", ""] == 0
    assert metrics["glossa_doctor_last_run_timestamp_seconds", ""] > 1e9
    assert metrics["glossa_doctor_check_seconds", ""] > 0
    assert process.returncode == 0


async def test_watching_outlives_a_look_that_fails(tmp_path: Path, up: Up) -> None:
    """Somebody writes the passwords anew, and has not finished."""
    state = State(tmp_path / "state")
    state.prepare()
    state.passwords()
    [passwords] = [file for file in state.root.rglob("*.json") if "auditor" in file.read_text()]
    whole = passwords.read_text()
    passwords.write_text(whole[:-5])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *GLOSSA[1:],
        *("doctor", "--watch", "0.1", "--only", "cache", "--json"),
        env=environment(tmp_path, up.ports),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            told = (await process.stderr.readline()).decode()
            passwords.write_text(whole)
            summary = await next_summary(process.stdout)
    finally:
        os.kill(process.pid, signal.SIGINT)
        await process.communicate()

    assert told.startswith("could not look: JSONDecodeError: ")
    assert summary["unknown"] > 0
    assert process.returncode == 0


async def next_summary(lines: asyncio.StreamReader) -> dict[str, Any]:
    while (told := json.loads(await lines.readline()))["type"] != "summary":
        pass
    assert isinstance(told, dict)
    return told


def scrape(address: str) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(address) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return {
            (sample.name, sample.labels.get("invariant", "")): sample.value
            for family in families
            for sample in family.samples
        }
