"""Tokens and scopes: who may call what, with algorithm, issuer, audience and expiry pinned."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from services.runtime import request
from services.runtime.errors import DependencyDown, Forbidden, Unauthenticated
from services.runtime.request import Caller

ALGORITHM = "EdDSA"
ISSUER = "glossa"
AUDIENCE = "glossa"
USER_SCOPE = "user"
SERVICE_SCOPES = frozenset({"gateway", "worker", "admin", "cache", "registry"})

SCOPES_ATTRIBUTE = "allowed_scopes"
_REMEMBERED_TOKENS = 4096
_Method = TypeVar("_Method", bound=Callable[..., Any])


class NotYourUser(Forbidden):
    """A user token acts only for its own subject."""

    reason = "NOT_YOUR_USER"


def generate_keys() -> tuple[bytes, bytes]:
    """A new private key for who issues tokens, and the public one for who checks them (PEM)."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return private, public


class Signer:
    """Issues tokens; only whoever holds the private key can."""

    def __init__(self, private_pem: bytes) -> None:
        key = load_pem_private_key(private_pem, password=None)
        assert isinstance(key, Ed25519PrivateKey)
        self._key = key

    def sign(
        self, *, subject: str, scopes: Iterable[str], lifetime: timedelta, email: str = ""
    ) -> str:
        now = datetime.now(UTC)
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": subject,
            "scope": " ".join(sorted(scopes)),
            "iat": now,
            "exp": now + lifetime,
            **({"email": email} if email else {}),
        }
        return jwt.encode(claims, self._key, algorithm=ALGORITHM)


class TokenVerifier:
    """Checks tokens, remembering the good ones until they expire."""

    def __init__(self, public_pem: bytes) -> None:
        key = load_pem_public_key(public_pem)
        if not isinstance(key, Ed25519PublicKey):
            raise ValueError("tokens are checked with an Ed25519 key")  # noqa: TRY004
        self._key = key
        # Checking a signature costs as much as a cache hit, and callers repeat their tokens.
        self._known: dict[str, Caller] = {}

    def verify(self, token: str) -> Caller:
        caller = self._known.get(token)
        if caller is None:
            caller = self._check(token)
            if len(self._known) >= _REMEMBERED_TOKENS:
                self._known.clear()
            self._known[token] = caller
        if caller.expires_at <= time.time():
            self._known.pop(token, None)
            raise Unauthenticated("the token has expired; get a new one")
        return caller

    def _check(self, token: str) -> Caller:
        try:
            claims = jwt.decode(
                token,
                self._key,
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                audience=AUDIENCE,
                options={"require": ["exp", "iat", "iss", "aud", "sub", "scope"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired; get a new one") from None
        except jwt.PyJWTError:
            raise Unauthenticated("the token is not valid here") from None
        scope, subject, email = claims["scope"], claims["sub"], claims.get("email", "")
        scopes = frozenset(scope.split()) if isinstance(scope, str) else frozenset()
        if not scopes or not subject:
            raise Unauthenticated("the token names no subject or scope")
        if not isinstance(email, str):
            raise Unauthenticated("the token names somebody who is no e-mail address")
        return Caller(
            subject=subject,
            scopes=scopes,
            email=email,
            issued_at=float(claims["iat"]),
            expires_at=float(claims["exp"]),
        )


class TokenFile:
    """A service's own token, read again when the file changes: rotation needs no restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._modified_ns = -1
        self._token = ""

    def token(self) -> str:
        try:
            modified_ns = self._path.stat().st_mtime_ns
            if modified_ns != self._modified_ns:
                self._token = self._path.read_text().strip()
                self._modified_ns = modified_ns
        except OSError as error:
            # The last token may be good for a while; without any there is nothing to say.
            if not self._token:
                raise DependencyDown(
                    f"this service cannot read its own token: {error.strerror}",
                    reason="TOKEN_UNAVAILABLE",
                ) from error
        return self._token


def allow(*scopes: str) -> Callable[[_Method], _Method]:
    """Declare which scopes may call an RPC; without this the server refuses to start."""
    unknown = set(scopes) - SERVICE_SCOPES - {USER_SCOPE}
    assert not unknown, f"unknown scopes {unknown}"

    def mark(method: _Method) -> _Method:
        setattr(method, SCOPES_ATTRIBUTE, frozenset(scopes))
        return method

    return mark


def current_caller() -> Caller:
    """Who makes the present call; the interceptor has checked the token."""
    caller = request.caller.get()
    if caller is None:
        raise Unauthenticated("send a token as 'authorization: Bearer …' metadata")
    return caller


def require_user(user_id: str, *, field: str = "user_id") -> None:
    """Refuse a user token that names somebody else; service tokens act for anybody."""
    caller = current_caller()
    if caller.is_user and caller.subject != user_id:
        raise NotYourUser("this token acts only for its own user", field=field)
