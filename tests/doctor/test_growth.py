"""What is asked by default is found by index, however much history there is.

`python -m tests.bench.doctor_growth` tells how long it takes over a million generations.
"""

import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from services.doctor.bounds import Bounds, configured_bounds
from services.doctor.examine import find_violations, questions
from services.doctor.invariant import all_invariants
from services.local.bootstrap import service_url
from services.local.layout import AUDITOR
from tests.conftest import PASSWORDS, TEMPLATE
from tests.doctor.history import write_history

# 1,000,000 takes minutes; the plans are the same.
ROWS = int(os.environ.get("GLOSSA_PLAN_ROWS", "50000"))
HISTORY = {
    "generations",
    "requests",
    "explain_requests",
    "ledger_entries",
    "generation_events",
    "ai_operations",
}
USUAL = configured_bounds(grace=Bounds.grace, since=Bounds.since)


@pytest.fixture(scope="module")
async def grown(template: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """A database with a long past, as the auditor sees it."""
    name = f"grown_{uuid4().hex}"
    server = await asyncpg.connect(template)
    await server.execute(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
    url = template.rpartition("/")[0] + f"/{name}"
    admin = await asyncpg.connect(url)
    await write_history(admin, ROWS)
    await admin.close()
    auditor = await asyncpg.connect(service_url(url, AUDITOR, PASSWORDS[AUDITOR]))
    yield auditor
    await auditor.close()
    await server.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    await server.close()


@pytest.mark.timeout(1200)
async def test_no_history_is_read_as_a_whole(grown: "asyncpg.Connection[Any]") -> None:
    scanned = {}
    async with questions(grown, USUAL):
        for invariant in all_invariants():
            plan = await grown.fetchval(f"EXPLAIN (FORMAT JSON) {invariant.sql}")
            found = set(scans(json.loads(plan)[0]["Plan"])) & HISTORY
            if found:
                scanned[invariant.name] = found

    assert scanned == {}


@pytest.mark.timeout(1200)
async def test_a_long_past_is_sound(grown: "asyncpg.Connection[Any]") -> None:
    assert await find_violations(grown, bounds=USUAL) == {}


def scans(node: dict[str, Any]) -> Iterator[str]:
    """Tables that are read from end to end; what a condition rules out beforehand is not."""
    if node.get("One-Time Filter"):
        return
    if node["Node Type"] == "Seq Scan":
        yield node["Relation Name"]
    for child in node.get("Plans", ()):
        yield from scans(child)
