"""The state folder: private, made once, and clear about why it cannot be."""

import json
import os
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from services.local.errors import LocalError
from services.local.layout import LOGINS, Ports, ports_from, suite_addresses
from services.local.state import SERVICE_TOKENS, State, write_private
from services.runtime.auth import TokenVerifier


@pytest.fixture
def state(tmp_path: Path) -> State:
    state = State(tmp_path / "state")
    state.prepare()
    return state


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_nobody_else_may_list_the_folder_or_read_a_secret(state: State) -> None:
    state.refresh_tokens()
    state.passwords()
    state.callback_secret()
    secrets = [path for path in state.root.rglob("*") if path.is_file()]

    assert len(secrets) == 2 + len(SERVICE_TOKENS) + 2
    assert {mode(path) for path in secrets} == {0o600}
    assert mode(state.root) & 0o066 == 0
    assert {mode(path) for path in state.root.iterdir() if path.is_dir()} == {0o700}


def test_a_login_that_a_newer_version_has_gets_its_password(state: State) -> None:
    assert state.known_passwords() == {}
    old = {"registry": "a", "cache": "b", "quota": "c", "worker": "d"}
    write_private(state.root / "passwords.json", json.dumps(old))

    passwords = state.passwords()

    assert passwords.items() > old.items()
    assert passwords.keys() - old.keys() == {"auditor", "dashboard"}
    assert state.passwords() == state.known_passwords() == passwords


def test_keys_and_passwords_are_made_once(state: State) -> None:
    key, passwords = state.signing_key_file.read_bytes(), state.passwords()

    state.prepare()

    assert state.signing_key_file.read_bytes() == key
    assert state.passwords() == passwords
    assert len(set(passwords.values())) == len(LOGINS)


def test_a_key_pair_that_was_left_unfinished_is_made_anew(state: State) -> None:
    state.signing_key_file.unlink()

    state.prepare()

    token = state.signer().sign(subject="x", scopes=["admin"], lifetime=timedelta(minutes=1))
    assert TokenVerifier(state.verify_key_file.read_bytes()).verify(token).subject == "x"


def test_each_calling_service_gets_a_token_of_its_own_scope(state: State) -> None:
    state.refresh_tokens()

    verifier = TokenVerifier(state.verify_key_file.read_bytes())
    for service, scope in SERVICE_TOKENS.items():
        caller = verifier.verify(state.token_file(service).read_text())
        assert (caller.subject, set(caller.scopes)) == (service, {scope})


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")

    with pytest.raises(LocalError, match=r"cannot write the state folder .* set GLOSSA_STATE_DIR"):
        State(tmp_path / "state").prepare()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)

    with pytest.raises(LocalError, match="Permission denied"):
        State(tmp_path / "state").prepare()


def test_a_missing_key_says_how_to_get_one_or_find_another(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"start the suite there first.*set GLOSSA_STATE_DIR"):
        State(tmp_path).signer()


def test_a_broken_key_is_one_sentence(state: State) -> None:
    state.signing_key_file.write_text("nonsense")

    with pytest.raises(LocalError, match="cannot read the key"):
        state.signer()


def test_a_second_suite_over_the_same_folder_is_refused(state: State) -> None:
    with (
        state.locked(),
        pytest.raises(LocalError, match="a suite is running over"),
        State(state.root).locked(),
    ):
        pass
    with state.locked():
        pass  # the first one has let go


def test_ports_follow_the_order_of_the_services() -> None:
    ports = ports_from({"GLOSSA_PORT_BASE": "6000"})

    assert [ports.port(name) for name in ("registry", "cache", "quota", "worker")] == [
        6000,
        6001,
        6002,
        6003,
    ]
    assert ports.metrics_address("worker") == "127.0.0.1:9104"


@pytest.mark.parametrize("written", ["0", "65533", "http", "-1", "1e3", "\uff15"])
def test_a_port_base_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(LocalError, match="GLOSSA_PORT_BASE must be a port"):
        ports_from({"GLOSSA_PORT_BASE": written})


def test_a_running_suite_is_found_where_it_says_it_is(state: State) -> None:
    here = {"GLOSSA_STATE_DIR": str(state.root)}
    with state.announced(Ports(base=7000).addresses()):
        assert suite_addresses(here)["cache"] == "127.0.0.1:7001"
        assert suite_addresses(here | {"GLOSSA_PORT_BASE": "8000"})["cache"] == "127.0.0.1:8001"

    assert suite_addresses(here)["cache"] == "127.0.0.1:50052"
