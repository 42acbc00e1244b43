"""What is known about the call being served: its id, its caller and how long it may take."""

import secrets
import string
import time
from contextvars import ContextVar
from dataclasses import dataclass

REQUEST_ID_HEADER = "x-request-id"
_ALLOWED = frozenset(string.ascii_letters + string.digits + "._-")

request_id: ContextVar[str] = ContextVar("request_id", default="")
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@dataclass(frozen=True)
class Caller:
    """Who is calling: a user acting for itself, or a service with scopes."""

    subject: str
    scopes: frozenset[str]
    # Which person holds the token; empty for most, and never a right by itself.
    email: str = ""
    # Seconds since the epoch.
    issued_at: float = 0.0
    expires_at: float = 0.0

    @property
    def is_user(self) -> bool:
        return "user" in self.scopes


caller: ContextVar[Caller | None] = ContextVar("caller", default=None)


def accept_request_id(offered: str | None) -> str:
    """The caller's id if it is safe to log, a new one otherwise."""
    if offered and len(offered) <= 64 and _ALLOWED.issuperset(offered):
        return offered
    return secrets.token_hex(8)


def set_deadline(seconds_left: float | None) -> None:
    _deadline.set(None if seconds_left is None else time.monotonic() + seconds_left)


def seconds_left() -> float | None:
    """How long the caller of the present call still waits; None when nobody does."""
    deadline = _deadline.get()
    return None if deadline is None else max(0.0, deadline - time.monotonic())
