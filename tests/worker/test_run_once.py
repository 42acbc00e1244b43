"""`glossa serve worker --once` as a real process: does what is waiting, then goes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
from glossa.cache.v1 import cache_pb2

from tests.fake_openai import FakeOpenAI
from tests.suite import Keys, Suite
from tests.worker.test_lease_loop import ask

READY = cache_pb2.GENERATION_STATUS_READY


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended, and what it said."""

    code: int
    said: str
    logged: str


Run = Callable[..., Coroutine[Any, Any, Ended]]


Start = Callable[..., Coroutine[Any, Any, asyncio.subprocess.Process]]


@pytest.fixture
def start_once(
    cluster: Suite, databases: Mapping[str, str], keys: Keys, model: FakeOpenAI
) -> Start:
    """Starts a worker; further arguments are settings from the environment."""

    async def start(*arguments: str, **settings: str) -> asyncio.subprocess.Process:
        environment = {
            **os.environ,
            "GLOSSA_DATABASE_URL": databases["worker"],
            "GLOSSA_VERIFY_KEY_FILE": str(keys.verify_key_file),
            "GLOSSA_TOKEN_FILE": str(keys.token_file("worker")),
            "GLOSSA_REGISTRY_ADDRESS": cluster.addresses["registry"],
            "GLOSSA_CACHE_ADDRESS": cluster.addresses["cache"],
            "GLOSSA_RENEW_SECONDS": "0.3",
            "OPENAI_API_KEY": "secret",
            "OPENAI_BASE_URL": model.url,
            **settings,
        }
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "serve", "worker", "--once", *arguments),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    return start


async def ended(process: asyncio.subprocess.Process) -> Ended:
    logged, said = await process.communicate()
    assert process.returncode is not None
    return Ended(code=process.returncode, said=said.decode(), logged=logged.decode())


@pytest.fixture
def work_once(start_once: Start) -> Run:
    """Runs a worker to its end."""

    async def run(*arguments: str, **settings: str) -> Ended:
        return await ended(await start_once(*arguments, **settings))

    return run


@pytest.fixture
async def admin(admin_url: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


async def test_it_does_everything_that_is_waiting_and_goes(
    cluster: Suite, model: FakeOpenAI, work_once: Run
) -> None:
    asked = [await ask(cluster, user=f"user-{number}") for number in range(25)]

    ended = await work_once("--budget", "60s", "--batch", "10")

    assert (ended.code, ended.said) == (0, "")
    assert model.calls == 25
    assert {(await cluster.generation(one)).status for one in asked} == {READY}
    assert '"jobs": 25' in ended.logged


async def test_it_goes_at_once_when_nothing_is_waiting(model: FakeOpenAI, work_once: Run) -> None:
    ended = await work_once("--budget", "1h")

    assert (ended.code, ended.said, model.calls) == (0, "", 0)


async def test_it_works_on_no_more_at_a_time_than_its_batch(
    cluster: Suite, model: FakeOpenAI, work_once: Run, admin: "asyncpg.Connection[Any]"
) -> None:
    for number in range(4):
        await ask(cluster, user=f"user-{number}")
    model.gate.clear()
    working = asyncio.create_task(work_once("--budget", "60s", "--batch", "2"))
    await model.wait_for_calls(2)

    taken = await admin.fetchval("SELECT count(*) FROM cache.generations WHERE attempts > 0")
    model.gate.set()
    ended = await working

    assert taken == 2
    assert (ended.code, model.calls) == (0, 4)


async def test_what_its_budget_does_not_suffice_for_goes_back_untouched(
    cluster: Suite, model: FakeOpenAI, work_once: Run, admin: "asyncpg.Connection[Any]"
) -> None:
    for number in range(3):
        await ask(cluster, user=f"user-{number}")
    model.gate.clear()

    ended = await work_once("--budget", "5s", "--batch", "10")

    assert (ended.code, ended.said) == (0, "")
    assert "budget_spent" in ended.logged
    rows = await admin.fetch(
        "SELECT leased_by, attempts - released AS tried FROM cache.generations"
    )
    assert [tuple(row) for row in rows] == [(None, 0)] * 3
    assert model.calls == 3

    model.gate.set()
    assert (await work_once("--budget", "60s")).code == 0
    left = "SELECT count(*) FROM cache.generations WHERE status <> 'ready'"
    assert await admin.fetchval(left) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_told_to_stop_it_gives_back_what_it_has_not_done(
    cluster: Suite,
    model: FakeOpenAI,
    start_once: Start,
    admin: "asyncpg.Connection[Any]",
    number: signal.Signals,
) -> None:
    for one in range(3):
        await ask(cluster, user=f"user-{one}")
    model.gate.clear()
    process = await start_once("--budget", "1h", "--batch", "2")
    await model.wait_for_calls(2)

    process.send_signal(number)
    end = await ended(process)

    assert (end.code, end.said) == (0, "")
    assert "Traceback" not in end.logged
    rows = await admin.fetch(
        "SELECT leased_by, attempts, released FROM cache.generations ORDER BY attempts DESC"
    )
    assert [tuple(row) for row in rows] == [(None, 1, 1), (None, 1, 1), (None, 0, 0)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"GLOSSA_CACHE_ADDRESS": "127.0.0.1:1"}, "the cache service does not answer"),
        ({"GLOSSA_TOKEN_FILE": "/nowhere/worker.jwt"}, "its own token"),
        ({"GLOSSA_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}, "the database"),
    ],
    ids=["no cache", "no token", "no database"],
)
async def test_what_keeps_it_from_working_is_told_in_one_sentence(
    work_once: Run, settings: dict[str, str], words: str
) -> None:
    ended = await work_once(**settings)

    assert ended.code != 0
    [sentence] = ended.said.splitlines()
    assert words in sentence
    assert "Traceback" not in ended.logged


@pytest.mark.parametrize(
    "arguments",
    [
        ("--budget", "0s"),
        ("--budget", "soon"),
        ("--budget", "-5s"),
        ("--batch", "0"),
        ("--batch", "101"),
        ("--batch", "many"),
    ],
    ids=" ".join,
)
async def test_a_bad_option_is_refused_with_what_is_expected(
    work_once: Run, arguments: tuple[str, str]
) -> None:
    ended = await work_once(f"{arguments[0]}={arguments[1]}")

    assert ended.code == 2
    assert arguments[0] in ended.said
    assert "must be" in ended.said
