"""Every RPC against every token it must not accept, and against those it must."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import grpc
import jwt
import pytest
from google.protobuf.message import Message

from services.runtime.auth import SERVICE_SCOPES, USER_SCOPE, generate_keys
from tests.security.rpcs import RPCS, Rpc, call
from tests.security.scopes import ALLOWED
from tests.suite import Keys, Suite, metadata

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
PERMISSION_DENIED = grpc.StatusCode.PERMISSION_DENIED
REFUSALS = {UNAUTHENTICATED, PERMISSION_DENIED}
EVERY_SCOPE = sorted(SERVICE_SCOPES | {USER_SCOPE})

every_rpc = pytest.mark.parametrize("rpc", RPCS.values(), ids=str)


def signed(keys: Keys, **changes: Any) -> str:
    """Ours in all but what is changed; with every scope, so that nothing else refuses it."""
    now = int(time.time())
    usual = {"iss": "glossa", "aud": "glossa", "sub": "mallory", "scope": " ".join(EVERY_SCOPE)}
    claims = {**usual, "iat": now, "exp": now + 3600, **changes}
    key = keys.signer._key
    return jwt.encode(claims, key, algorithm="EdDSA")


def forged(keys: Keys, algorithm: str, sign: Callable[[bytes], bytes]) -> str:
    """The claims of a good token under another header."""

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    header = part(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
    message = header + b"." + signed(keys).split(".")[1].encode()
    return (message + b"." + part(sign(message))).decode()


def bad_tokens(keys: Keys) -> dict[str, str]:
    good, public = signed(keys), keys.verify_key_file.read_bytes()
    now = int(time.time())
    foreign = jwt.encode(
        jwt.decode(good, options={"verify_signature": False}), generate_keys()[0], "EdDSA"
    )
    return {
        "malformed": "Bearer not.a.token",
        "empty": "Bearer ",
        "not a bearer": f"Basic {good}",
        "expired": f"Bearer {signed(keys, exp=now - 1)}",
        "not yet valid": f"Bearer {signed(keys, nbf=now + 3600)}",
        "issued in the future": f"Bearer {signed(keys, iat=now + 3600)}",
        "wrong audience": f"Bearer {signed(keys, aud='elsewhere')}",
        "wrong issuer": f"Bearer {signed(keys, iss='elsewhere')}",
        "alg none": f"Bearer {forged(keys, 'none', lambda _: b'')}",
        "key confusion": "Bearer "
        + forged(keys, "HS256", lambda m: hmac.new(public, m, hashlib.sha256).digest()),
        "truncated signature": f"Bearer {good[:-10]}",
        "no signature": f"Bearer {good.rpartition('.')[0]}.",
        "foreign key": f"Bearer {foreign}",
        "no scope": f"Bearer {signed(keys, scope=' ')}",
        "oversized": f"Bearer {good}{'x' * 8000}",
    }


def test_the_table_names_every_rpc() -> None:
    assert set(ALLOWED) == set(RPCS)


@every_rpc
async def test_no_rpc_takes_a_token_that_is_not_ours_now(rpc: Rpc, town: Suite) -> None:
    told = await call(town, rpc, b"")
    assert told.code == UNAUTHENTICATED
    for name, header in bad_tokens(town.keys).items():
        told = await call(town, rpc, b"", metadata=[("authorization", header)])
        assert told.code == UNAUTHENTICATED, name
        assert b"UNAUTHENTICATED" in told.details, name


@every_rpc
async def test_an_rpc_lets_in_the_scopes_it_is_for_and_no_other(rpc: Rpc, town: Suite) -> None:
    """An empty message: whoever is let in is refused for what it says, or answered."""
    for scope in EVERY_SCOPE:
        told = await call(town, rpc, b"", metadata=metadata(town.keys.token(scope)))
        if scope in ALLOWED[rpc.name]:
            let_in = told.code not in REFUSALS or b"NOT_YOUR_USER" in told.details
            assert let_in, scope
        else:
            assert told.code == PERMISSION_DENIED, scope
            assert rpc.path in told.message
            assert b"PERMISSION_DENIED" in told.details


@every_rpc
async def test_two_scopes_together_are_not_more_than_each(rpc: Rpc, town: Suite) -> None:
    others = set(EVERY_SCOPE) - ALLOWED[rpc.name]
    told = await call(town, rpc, b"", metadata=metadata(town.keys.token(*others)))
    assert told.code == PERMISSION_DENIED


for_users = pytest.mark.parametrize(
    "rpc", [rpc for name, rpc in RPCS.items() if "user" in ALLOWED[name]], ids=str
)


def name_user(message: Message, user: str) -> bool:
    """Fill in whoever the message is about, wherever that stands in it."""
    for field in message.DESCRIPTOR.fields:
        if field.name == "user_id":
            setattr(message, field.name, user)
            return True
        if field.name in {"owner", "header"} and field.message_type is not None:
            return name_user(getattr(message, field.name), user)
    return False


@for_users
async def test_a_user_token_acts_for_its_own_subject_alone(rpc: Rpc, town: Suite) -> None:
    request = rpc.request()
    assert name_user(request, "alice"), "an RPC for users says which one it is about"
    fill_ids(request)
    as_mallory, as_alice = town.as_user("mallory"), town.as_user("alice")

    theirs = await call(town, rpc, request.SerializeToString(), metadata=as_mallory)
    own = await call(town, rpc, request.SerializeToString(), metadata=as_alice)

    assert theirs.code == PERMISSION_DENIED
    assert b"NOT_YOUR_USER" in theirs.details
    assert own.code not in REFUSALS


@for_users
async def test_a_user_token_without_a_user_sees_nothing(rpc: Rpc, town: Suite) -> None:
    request = rpc.request()
    fill_ids(request)

    told = await call(town, rpc, request.SerializeToString(), metadata=town.as_user("mallory"))

    assert told.code in {PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT}


def owner_of(request: Message) -> Any:
    return getattr(getattr(request, "header", request), "owner", None)


@pytest.mark.parametrize(
    "rpc",
    [
        rpc
        for name, rpc in RPCS.items()
        if "user" in ALLOWED[name] and owner_of(rpc.request()) is not None
    ],
    ids=str,
)
async def test_a_user_token_does_not_act_for_visitors(rpc: Rpc, town: Suite) -> None:
    request = rpc.request()
    owner_of(request).visitor_session_id = "visitor-1"
    fill_ids(request)

    told = await call(town, rpc, request.SerializeToString(), metadata=town.as_user("mallory"))

    assert told.code == PERMISSION_DENIED


def fill_ids(request: Message) -> None:
    """What is checked before the user is."""
    for field in request.DESCRIPTOR.fields:
        if field.name in {"generation_id", "request_id", "file_id"}:
            setattr(request, field.name, "00000000-0000-4000-8000-000000000000")
        if field.name == "page":
            request.page = 1  # type: ignore[attr-defined]
        if field.name == "locale":
            request.locale = "en"  # type: ignore[attr-defined]
