"""Whatever goes wrong, the command says it in one line and exits with 1."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from services.cli.tokens import parse_lifetime
from services.local.free_ports import free_ports
from services.local.layout import state_dir_from
from services.local.state import State
from services.runtime.auth import TokenVerifier

PAGES = "--page must be from 1 to 2147483647, not "


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
        "start the suite there first: `make run`, "
        "or set GLOSSA_STATE_DIR to the folder of the one that runs"
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
        (["token", "--user", "a b"], "--user must be 1 to 128 letters"),
        (["token", "--user", ""], "--user must be 1 to 128 letters"),
        (["token", "--user", "a", "--scope", "admin"], "--user and --scope do not go together"),
        (["token", "--user", "a", "--admin"], "--admin does not go with --user"),
        (["token", "--scope", "worker", "--admin"], "--admin does not go with --user"),
        (["token", "--email", "a@b.org"], "--email is for admins"),
        (["token", "--admin", "--email", "nobody"], "'nobody' is no e-mail address"),
        (["token", "--admin", "--email", "a@b.org,c@d"], "'a@b.org,c@d' is no e-mail address"),
        (["explain", __file__, "--user", "a", "--page", "0"], PAGES),
        (["explain", __file__, "--user", "a", "--page", "-1"], PAGES),
        (["explain", __file__, "--user", "a", "--page", "99999999999"], PAGES),
    ],
)
def test_bad_arguments_are_one_line(state: State, arguments: list[str], words: str) -> None:
    assert only_line(glossa(*arguments, state=state)).startswith(f"error: {words}")


def test_a_port_base_that_is_none_is_one_line(state: State) -> None:
    line = only_line(glossa("up", state=state, GLOSSA_PORT_BASE="http"))

    assert line == "error: GLOSSA_PORT_BASE must be a port from 1 to 65532, not 'http'"


@pytest.mark.parametrize(
    ("arguments", "code", "reason", "next_step"),
    [
        (["quota", "--user", "a"], 1, "COMMAND_FAILED", "is the suite running? try `make run`"),
        (["upload", "nowhere.pdf", "--user", "a"], 1, "FILE_UNREADABLE", ""),
        (["quota"], 2, "USAGE", "try --help"),
    ],
)
def test_machines_are_told_errors_as_one_object(
    state: State, arguments: list[str], code: int, reason: str, next_step: str
) -> None:
    result = glossa(*arguments, "--json", state=state)

    told = json.loads(result.stderr)
    assert (result.returncode, result.stdout) == (code, "")
    assert list(told) == ["type", "reason", "message", "next"]
    assert (told["type"], told["reason"], told["next"]) == ("error", reason, next_step)


def test_a_terminal_that_knows_few_characters_is_no_error(state: State) -> None:
    line = only_line(
        glossa("upload", "übung.pdf", "--user", "a", state=state, PYTHONIOENCODING="ascii")
    )

    assert line == "error: ?bung.pdf: No such file or directory"


def test_json_is_a_flag_without_a_value() -> None:
    help_text = glossa("quota", "--help").stdout

    [line] = [line for line in help_text.splitlines() if "--json" in line]
    assert "<bool>" not in line


def test_migrate_beside_a_running_suite_says_that_it_is_done_already(state: State) -> None:
    with state.locked():
        line = only_line(glossa("migrate", state=state, DATABASE_URL=""))

    assert line == (
        f"error: a suite is running over {state.root} already; "
        "it migrated its database when it started; stop it to migrate again"
    )


def test_a_token_is_printed_alone_and_says_what_was_asked(state: State) -> None:
    verifier = TokenVerifier(state.verify_key_file.read_bytes())

    gateway = verifier.verify(glossa("token", state=state).stdout.strip())
    admin = verifier.verify(glossa("token", "--scope", "admin", state=state).stdout.strip())
    alice = verifier.verify(glossa("token", "--user", "alice", state=state).stdout.strip())
    named = ("token", "--admin", "--email", "ann@example.org")
    ann = verifier.verify(glossa(*named, state=state).stdout.strip())
    assert (set(ann.scopes), ann.email) == ({"admin"}, "ann@example.org")

    assert (set(gateway.scopes), set(admin.scopes)) == ({"gateway"}, {"admin"})
    assert (alice.subject, set(alice.scopes)) == ("alice", {"user"})


def test_lifetimes_are_read_with_their_unit() -> None:
    assert [parse_lifetime(written) for written in ("90s", "30m", "12h", "7d")] == [
        timedelta(seconds=90),
        timedelta(minutes=30),
        timedelta(hours=12),
        timedelta(days=7),
    ]


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
