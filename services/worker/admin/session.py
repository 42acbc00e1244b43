"""Who is signed in: a short-lived admin token in a cookie, checked anew with every request."""

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from services.runtime.auth import TokenVerifier
from services.runtime.errors import Forbidden, GlossaError, LimitReached, Unauthenticated

ADMIN_SCOPE = "admin"
SESSION_COOKIE = "glossa_admin"
# Tells one visitor's sign-in form from another's, before there is a session.
VISIT_COOKIE = "glossa_visit"
# A session lasts as long as its token, so that must not be long.
LONGEST_SESSION = timedelta(hours=12)
# A token without scopes for everything is still some hundreds of bytes; a cookie has four thousand.
MOST_TOKEN = 3_500

TRIES = 10
TRIES_WITHIN_SECONDS = 60.0
ADDRESSES_REMEMBERED = 1_000


class NotAnAdmin(Forbidden):
    """A good token of somebody who may not see these pages."""

    reason = "NOT_AN_ADMIN"


class TooManyTries(LimitReached):
    """Somebody tries one token after the other."""

    reason = "TOO_MANY_TRIES"


class FormExpired(Forbidden):
    """The form was not made for this session."""

    reason = "FORM_EXPIRED"


@dataclass(frozen=True, kw_only=True)
class Session:
    """A person who may see these pages, and the token they act with."""

    email: str
    token: str
    seconds_left: int

    @property
    def form_token(self) -> str:
        return form_token(self.token)


class SignIn:
    """Decides who may come in; keeps nothing but who failed lately."""

    def __init__(self, verifier: TokenVerifier, emails: frozenset[str]) -> None:
        self._verifier = verifier
        self._emails = emails
        self._failed: OrderedDict[str, deque[float]] = OrderedDict()

    @property
    def is_open(self) -> bool:
        """Whether there is anybody who may sign in."""
        return bool(self._emails)

    def session(self, token: str) -> Session:
        """Whose token it is, if they may come in with it now."""
        if not token or len(token) > MOST_TOKEN:
            raise Unauthenticated("that is no token")
        caller = self._verifier.verify(token)
        if caller.email.lower() not in self._emails:
            who = caller.email or "a token without an e-mail address"
            raise NotAnAdmin(f"these pages are not for {who}")
        if ADMIN_SCOPE not in caller.scopes:
            raise NotAnAdmin(f"the token of {caller.email} is not one for admins")
        if caller.expires_at - caller.issued_at > LONGEST_SESSION.total_seconds():
            raise Unauthenticated("a token for signing in must not be good for more than 12 hours")
        return Session(
            email=caller.email, token=token, seconds_left=int(caller.expires_at - time.time())
        )

    def try_token(self, token: str, *, address: str) -> Session:
        """The same for a token that was typed in; who fails too often is told to wait.

        A good token comes in at any time: behind a proxy everybody has one address, and who
        fails must not lock the others out.
        """
        try:
            return self.session(token)
        except GlossaError:
            self._count_failure(address)
            raise

    def _count_failure(self, address: str) -> None:
        failed = self._tries_of(address)
        if len(failed) >= TRIES:
            wait = timedelta(seconds=max(1, failed[0] + TRIES_WITHIN_SECONDS - time.monotonic()))
            raise TooManyTries("too many tokens that are no good; wait a minute", retry_after=wait)
        failed.append(time.monotonic())

    def _tries_of(self, address: str) -> deque[float]:
        failed = self._failed.setdefault(address, deque())
        self._failed.move_to_end(address)
        while len(self._failed) > ADDRESSES_REMEMBERED:
            self._failed.popitem(last=False)
        while failed and failed[0] <= time.monotonic() - TRIES_WITHIN_SECONDS:
            failed.popleft()
        return failed


def form_token(secret: str) -> str:
    """What a form must bring along; nobody can make it who cannot read the cookie."""
    return hmac.digest(secret.encode(), b"glossa admin form", hashlib.sha256).hex()


def check_form(form: Mapping[str, str], secret: str) -> None:
    brought = form.get("form_token", "")
    if not secret or not hmac.compare_digest(brought.encode(), form_token(secret).encode()):
        raise FormExpired("this form belongs to another session; load the page again and repeat")


def new_visit() -> str:
    return secrets.token_urlsafe(32)
