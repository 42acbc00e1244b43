"""Tokens: only ours, only now, only for what their scopes allow."""

import base64
import hashlib
import hmac
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest

from services.runtime.auth import Signer, TokenFile, TokenVerifier, generate_keys
from services.runtime.errors import Unauthenticated

PRIVATE, PUBLIC = generate_keys()
CLAIMS = {"iss": "glossa", "aud": "glossa", "sub": "alice", "scope": "user"}


def signed(key: bytes = PRIVATE, algorithm: str = "EdDSA", **changes: Any) -> str:
    now = int(time.time())
    claims = {**CLAIMS, "iat": now, "exp": now + 60, **changes}
    return jwt.encode(
        {name: value for name, value in claims.items() if value is not None},
        key,
        algorithm=algorithm,
    )


def unsigned() -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {**CLAIMS, "iat": int(time.time()), "exp": int(time.time()) + 60}
    return f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims)}."


def confused() -> str:
    """Signed with the public key as if it were a shared secret."""

    def part(value: dict[str, Any]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    claims = {**CLAIMS, "iat": int(time.time()), "exp": int(time.time()) + 60}
    message = part({"alg": "HS256", "typ": "JWT"}) + b"." + part(claims)
    signature = base64.urlsafe_b64encode(hmac.new(PUBLIC, message, hashlib.sha256).digest())
    return (message + b"." + signature.rstrip(b"=")).decode()


def test_our_own_token_is_accepted() -> None:
    token = Signer(PRIVATE).sign(
        subject="gateway-1", scopes=("gateway",), lifetime=timedelta(minutes=1)
    )

    caller = TokenVerifier(PUBLIC).verify(token)

    assert (caller.subject, caller.scopes, caller.is_user) == (
        "gateway-1",
        frozenset({"gateway"}),
        False,
    )


@pytest.mark.parametrize(
    "token",
    [
        "",
        "nonsense",
        signed(exp=int(time.time()) - 1),
        signed(exp=None),
        signed(aud="somebody-else"),
        signed(aud=None),
        signed(iss="somebody-else"),
        signed(iss=None),
        signed(sub=None),
        signed(sub=""),
        signed(scope=None),
        signed(scope=""),
        signed(scope=["admin"]),
        signed(key=generate_keys()[0]),
        unsigned(),
        confused(),
    ],
    ids=[
        "empty",
        "garbage",
        "expired",
        "endless",
        "wrong audience",
        "no audience",
        "wrong issuer",
        "no issuer",
        "no subject",
        "empty subject",
        "no scope",
        "empty scope",
        "scope of another type",
        "foreign key",
        "alg none",
        "key confusion",
    ],
)
def test_any_other_token_is_refused(token: str) -> None:
    with pytest.raises(Unauthenticated):
        TokenVerifier(PUBLIC).verify(token)


def test_a_remembered_token_still_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    verifier = TokenVerifier(PUBLIC)
    token = signed(exp=int(time.time()) + 60)
    verifier.verify(token)

    later = time.time() + 61
    monkeypatch.setattr("services.runtime.auth.time.time", lambda: later)

    with pytest.raises(Unauthenticated, match="expired"):
        verifier.verify(token)


def test_a_new_token_is_picked_up_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cache.jwt"
    path.write_text("old\n")
    source = TokenFile(path)
    assert source.token() == "old"

    fresh = tmp_path / "fresh"
    fresh.write_text("new\n")
    fresh.replace(path)

    assert source.token() == "new"


def test_a_token_may_name_the_person_who_holds_it() -> None:
    verifier = TokenVerifier(PUBLIC)
    named = Signer(PRIVATE).sign(
        subject="x", scopes=["admin"], lifetime=timedelta(minutes=1), email="ann@example.org"
    )

    assert verifier.verify(named).email == "ann@example.org"
    assert verifier.verify(signed()).email == ""
    with pytest.raises(Unauthenticated):
        verifier.verify(signed(email=["ann@example.org"]))
