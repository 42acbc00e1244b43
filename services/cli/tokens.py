"""Tokens minted from the key in the state folder, for people and for the command line itself."""

import os
import re
import time
from datetime import timedelta

from services.cli.errors import CommandFailed
from services.local.layout import state_dir_from
from services.local.state import State
from services.runtime.auth import USER_SCOPE, Signer
from services.runtime.errors import InvalidInput
from services.runtime.validation import parse_identity

# "cache" and "registry" are for those services themselves, deployed without `glossa up`.
SCOPES = ("gateway", "worker", "admin", "cache", "registry")
DEFAULT_SCOPE = "gateway"
ADMIN_SCOPE = "admin"
SUBJECT = "glossa-cli"
LONGEST = timedelta(days=365)
OWN_LIFETIME = timedelta(hours=1)
_EMAIL = re.compile(r"[^\s@,]{1,64}@[^\s@,]{1,190}")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def make_token(
    *, scope: str | None, user: str | None, lifetime: str, admin: bool = False, email: str = ""
) -> str:
    if admin and (user is not None or scope not in {None, ADMIN_SCOPE}):
        raise CommandFailed(
            "--admin does not go with --user or another --scope", next_step="give one of them"
        )
    if admin:
        scope = ADMIN_SCOPE
    if user is not None and scope is not None:
        raise CommandFailed(
            "--user and --scope do not go together: a user's token acts for that user alone",
            next_step="give one of them",
        )
    scope = scope or DEFAULT_SCOPE
    if scope not in SCOPES:
        message = f"there is no scope {scope!r}"
        raise CommandFailed(message, next_step=f"choose one of {', '.join(SCOPES)}")
    duration = parse_lifetime(lifetime)
    signer = _signer()
    if user is not None:
        return signer.sign(subject=_user(user), scopes=[USER_SCOPE], lifetime=duration)
    return signer.sign(
        subject=SUBJECT, scopes=[scope], lifetime=duration, email=_email(email, scope)
    )


def parse_lifetime(written: str) -> timedelta:
    match = re.fullmatch(r"(\d{1,9})([smhd])", written)
    lifetime = timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else timedelta()
    if not timedelta() < lifetime <= LONGEST:
        message = f"{written!r} is no lifetime"
        raise CommandFailed(message, next_step="write 30m, 12h or 7d, at most 365d")
    return lifetime


class MintedToken:
    """The command line's own token, renewed well before it expires."""

    def __init__(self, signer: Signer, scope: str = DEFAULT_SCOPE) -> None:
        self._signer = signer
        self._scope = scope
        self._token = ""
        self._renew_at = 0.0

    def token(self) -> str:
        if time.monotonic() >= self._renew_at:
            self._token = self._signer.sign(
                subject=SUBJECT, scopes=[self._scope], lifetime=OWN_LIFETIME
            )
            self._renew_at = time.monotonic() + OWN_LIFETIME.total_seconds() / 2
        return self._token


def _signer() -> Signer:
    return State(state_dir_from(os.environ)).signer()


def _email(email: str, scope: str) -> str:
    """Who signs in to the admin page with the token; services call each other without."""
    if not email:
        return ""
    if scope != ADMIN_SCOPE:
        raise CommandFailed(
            "--email is for admins: it names who signs in to the admin page",
            next_step="add --admin",
        )
    if not _EMAIL.fullmatch(email):
        raise CommandFailed(
            f"{email!r} is no e-mail address", next_step="write it as someone@example.org"
        )
    return email


def _user(user: str) -> str:
    try:
        return parse_identity("--user", user)
    except InvalidInput as error:
        raise CommandFailed(error.message) from None
