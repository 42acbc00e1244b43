"""The state folder: keys, tokens, passwords, database, objects and logs of one machine."""

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import IO

from services.local.errors import LocalError
from services.local.layout import LOGINS, METRICS_PORT_VARIABLE, PORT_VARIABLE
from services.runtime.auth import Signer, generate_keys

TOKEN_LIFETIME = timedelta(hours=24)
# What each service may do at the others; Quota calls nobody.
SERVICE_TOKENS = {"registry": "registry", "cache": "cache", "worker": "worker"}
RUN_ANOTHER = f"set GLOSSA_STATE_DIR, {PORT_VARIABLE} and {METRICS_PORT_VARIABLE} to run another"


class State:
    """One state folder; everything in it is for its owner only."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def objects(self) -> Path:
        return self.root / "objects"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def verify_key_file(self) -> Path:
        return self.root / "keys" / "verify.pem"

    @property
    def signing_key_file(self) -> Path:
        return self.root / "keys" / "signing.pem"

    @property
    def _password_file(self) -> Path:
        return self.root / "passwords.json"

    def log_file(self, service: str) -> Path:
        return self.root / "logs" / f"{service}.log"

    def token_file(self, service: str) -> Path:
        return self.root / "tokens" / f"{service}.jwt"

    def prepare(self) -> None:
        """Make the folders and keys that are missing."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            # As root, Postgres runs as somebody else who must be able to walk through.
            self.root.chmod(0o711 if os.geteuid() == 0 else 0o700)
            for name in ("keys", "tokens", "objects", "spool", "logs"):
                (self.root / name).mkdir(exist_ok=True)
                (self.root / name).chmod(0o700)
            if not self.signing_key_file.exists():
                self._make_keys()
        except OSError as error:
            raise LocalError(
                f"cannot write the state folder {self.root} ({error.strerror})",
                next_step="set GLOSSA_STATE_DIR to another place",
            ) from error

    @contextmanager
    def locked(self, *, next_step: str = RUN_ANOTHER) -> Iterator[None]:
        """Be the only suite over this folder, or say that there is one."""
        with (self.root / "lock").open("w") as lock:
            _lock(lock, self.root, next_step)
            yield

    def signer(self) -> Signer:
        """Issues tokens that the suite over this folder believes."""
        try:
            return Signer(self.signing_key_file.read_bytes())
        except FileNotFoundError:
            raise LocalError(
                f"there is no signing key in {self.root}",
                next_step="start the suite there first: `make run`, "
                "or set GLOSSA_STATE_DIR to the folder of the one that runs",
            ) from None
        except (OSError, ValueError) as error:
            raise LocalError(f"cannot read the key {self.signing_key_file}: {error}") from error

    def refresh_tokens(self) -> None:
        """Give each service that calls others a token for the next day."""
        signer = self.signer()
        for service, scope in SERVICE_TOKENS.items():
            token = signer.sign(subject=service, scopes=[scope], lifetime=TOKEN_LIFETIME)
            write_private(self.token_file(service), token)

    def passwords(self) -> dict[str, str]:
        """The database passwords of services and readers; each made once."""
        passwords = self.known_passwords()
        missing = [login for login in LOGINS if login not in passwords]
        if missing:  # all of them, or those of logins that a newer version has added
            passwords |= {login: secrets.token_urlsafe(24) for login in missing}
            write_private(self._password_file, json.dumps(passwords))
        return passwords

    def known_passwords(self) -> dict[str, str]:
        """Those that have been made; looking changes nothing."""
        try:
            passwords: dict[str, str] = json.loads(self._password_file.read_text())
        except FileNotFoundError:
            return {}
        return passwords

    def callback_secret(self) -> str:
        """What callbacks are signed with; made once, for receivers to be given."""
        file = self.root / "keys" / "callback.secret"
        if not file.exists():
            write_private(file, secrets.token_urlsafe(32))
        return file.read_text().strip()

    @contextmanager
    def announced(self, addresses: Mapping[str, str]) -> Iterator[None]:
        """While the suite runs, its addresses stand in the folder for the command line to find."""
        file = self.root / "suite.json"
        write_private(file, json.dumps(dict(addresses)))
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    def _make_keys(self) -> None:
        private, public = generate_keys()
        # The signing key comes last: where it exists, both do.
        write_private(self.verify_key_file, public.decode())
        write_private(self.signing_key_file, private.decode())


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole; nobody else may read it, at no moment."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.unlink(missing_ok=True)
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    unfinished.replace(path)


def _lock(lock: IO[str], root: Path, next_step: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = f"a suite is running over {root} already"
        raise LocalError(message, next_step=next_step) from None
