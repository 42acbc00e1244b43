"""Whatever goes wrong, the command says it in one line and exits with 1."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from services.cli.errors import error_line
from services.cli.tokens import parse_lifetime
from services.local.free_ports import free_ports
from services.local.layout import state_dir_from
from services.local.state import State
from services.runtime.auth import TokenVerifier
from services.runtime.errors import LimitReached, NotFound


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "state")
    state.prepare()
    return state


def glossa(
    *arguments: str, state: State | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GLOSSA_PORT_BASE": str(free_ports().base), "COLUMNS": "80"}
    if state is not None:
        environment["GLOSSA_STATE_DIR"] = str(state.root)
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def only_line(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1
    assert result.stdout == ""
    [line] = result.stderr.strip().split("\n")
    return line


@pytest.mark.parametrize(
    ("arguments", "service"),
    [
        (["quota", "--user", "alice"], "quota"),
        (["upload", __file__, "--user", "alice"], "registry"),
        (["explain", __file__, "--user", "alice"], "registry"),
        (["explain", "--hash", "0" * 64, "--user", "alice"], "cache"),
        (["watch", "x", "--user", "alice"], "worker"),
    ],
)
def test_a_suite_that_is_not_running_is_told_with_the_remedy(
    state: State, arguments: list[str], service: str
) -> None:
    line = only_line(glossa(*arguments, state=state))

    assert line.startswith(f"error: cannot reach the {service} service at 127.0.0.1:")
    assert line.endswith("is the suite running? try `make run`")


def test_no_state_folder_is_told_with_the_remedy(tmp_path: Path) -> None:
    line = only_line(glossa("token", state=State(tmp_path / "nowhere")))

    assert line == (
        f"error: there is no signing key in {tmp_path}/nowhere; "
        "start the suite there first: `make run`"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["upload", "nowhere.pdf", "--user", "a"], "nowhere.pdf: No such file or directory"),
        (["upload", "/", "--user", "a"], "/ is a folder; give a PDF file"),
        (["explain", "--user", "a"], "name the document once"),
        (["explain", "x.pdf", "--hash", "0", "--user", "a"], "name the document once"),
        (["token", "--scope", "god"], "there is no scope 'god'; choose one of gateway"),
        (["token", "--lifetime", "soon"], "'soon' is no lifetime; write 30m, 12h or 7d"),
        (["token", "--lifetime", "0s"], "'0s' is no lifetime"),
        (["token", "--user", "a b"], "user must be 1 to 128 letters"),
    ],
)
def test_bad_arguments_are_one_line(state: State, arguments: list[str], words: str) -> None:
    assert only_line(glossa(*arguments, state=state)).startswith(f"error: {words}")


def test_a_port_base_that_is_none_is_one_line(state: State) -> None:
    line = only_line(glossa("up", state=state, GLOSSA_PORT_BASE="http"))

    assert line == "error: GLOSSA_PORT_BASE must be a port from 1 to 65532, not 'http'"


def test_a_token_is_printed_alone_and_says_what_was_asked(state: State) -> None:
    verifier = TokenVerifier(state.verify_key_file.read_bytes())

    gateway = verifier.verify(glossa("token", state=state).stdout.strip())
    admin = verifier.verify(glossa("token", "--scope", "admin", state=state).stdout.strip())
    alice = verifier.verify(glossa("token", "--user", "alice", state=state).stdout.strip())

    assert (set(gateway.scopes), set(admin.scopes)) == ({"gateway"}, {"admin"})
    assert (alice.subject, set(alice.scopes)) == ("alice", {"user"})


def test_lifetimes_are_read_with_their_unit() -> None:
    assert [parse_lifetime(written) for written in ("90s", "30m", "12h", "7d")] == [
        timedelta(seconds=90),
        timedelta(minutes=30),
        timedelta(hours=12),
        timedelta(days=7),
    ]


class FileNotFound(NotFound):
    """As the Registry says it."""

    reason = "FILE_NOT_FOUND"


def test_a_refusal_names_its_reason_and_the_next_step() -> None:
    assert error_line(FileNotFound("there is no such file")) == (
        "error: there is no such file (FILE_NOT_FOUND); "
        "upload it first: `glossa upload FILE --user ID`"
    )


def test_a_refusal_that_passes_says_how_long_to_wait() -> None:
    refusal = LimitReached("the window is full", retry_after=timedelta(seconds=7))

    assert error_line(refusal).endswith("waiting 7 s helps")


def test_the_unexpected_is_one_line_too() -> None:
    line = error_line(RuntimeError("boom"))

    assert "\n" not in line
    assert line.endswith("set GLOSSA_DEBUG=1 to see where")


def test_an_unknown_service_cannot_be_served() -> None:
    result = glossa("serve", "billing")

    assert result.returncode == 2
    assert "choose one of registry, cache, quota, worker" in result.stderr


def test_a_service_without_settings_says_what_is_missing(state: State) -> None:
    line = only_line(glossa("serve", "quota", state=state, GLOSSA_DATABASE_URL=""))

    assert line.startswith("quota cannot start: ")


def test_the_state_folder_is_named_by_the_environment(tmp_path: Path) -> None:
    assert state_dir_from({"GLOSSA_STATE_DIR": str(tmp_path)}) == tmp_path
    assert state_dir_from({}).name == ".glossa"


def test_help_needs_neither_grpc_nor_the_services() -> None:
    code = "import services.cli.__main__, sys; print('grpc' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "False"
