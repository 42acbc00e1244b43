"""The response cache: found by meaning, apart by scope, for its time, every hit counted."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct, Value

from services.cache.__main__ import compose
from services.cache.config import Config
from services.runtime.server import running
from tests.cache.conftest import House, details, refused
from tests.suite import Keys, Suite

NOBODY_LISTENS = "127.0.0.1:1"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
MIB = 1 << 20


@pytest.fixture
async def house(admin_url: str, databases: Mapping[str, str], keys: Keys) -> AsyncIterator[House]:
    """A Cache alone: responses concern neither Registry nor Quota."""
    config = Config(
        database_url=databases["cache"],
        verify_key_file=keys.verify_key_file,
        token_file=keys.token_file("cache"),
        registry_address=NOBODY_LISTENS,
        quota_address=NOBODY_LISTENS,
    )
    admin = await asyncpg.connect(admin_url)
    async with AsyncExitStack() as exits:
        exits.push_async_callback(admin.close)
        cache = await exits.enter_async_context(running("cache", config, compose))
        clients = await exits.enter_async_context(AsyncExitStack())
        yield House(Suite(addresses={"cache": cache.address}, keys=keys, exits=clients), admin)


def struct(**values: Any) -> Struct:
    message = Struct()
    message.update(values)
    return message


def seconds(count: float) -> Duration:
    message = Duration()
    message.FromTimedelta(timedelta(seconds=count))
    return message


async def store(
    house: House,
    response: bytes,
    *,
    operation: str = "translate",
    scope: str = "",
    ttl: Duration | None = None,
    **question: Any,
) -> cache_pb2.StoreResponseResponse:
    request = cache_pb2.StoreResponseRequest(
        operation=operation, input=struct(**question), scope=scope, response=response, ttl=ttl
    )
    return await house.suite.cache.StoreResponse(request, metadata=house.suite.bearer())


async def lookup(
    house: House, *, operation: str = "translate", scope: str = "", **question: Any
) -> cache_pb2.LookupResponseResponse:
    request = cache_pb2.LookupResponseRequest(
        operation=operation, input=struct(**question), scope=scope
    )
    return await house.suite.cache.LookupResponse(request, metadata=house.suite.bearer())


async def forget(house: House, **fields: Any) -> int:
    request = cache_pb2.InvalidateResponsesRequest(**fields)
    response = await house.suite.cache.InvalidateResponses(request, metadata=house.suite.bearer())
    return response.deleted


async def test_what_was_stored_is_found_by_its_meaning(house: House) -> None:
    missed = await lookup(house, title="Entropie", numbers=[1, 2.5])
    stored = await store(house, b"\x00Entropy\xff", title="Entropie", numbers=[1, 2.5])

    found = await lookup(house, numbers=[1.0, 2.5], title="Entropie")

    assert (missed.hit, missed.response, missed.hit_count) == (False, b"", 0)
    assert not missed.HasField("expires_at")
    assert (found.hit, found.response, found.hit_count) == (True, b"\x00Entropy\xff", 1)
    assert found.expires_at == stored.expires_at
    assert missed.cache_key == stored.cache_key == found.cache_key


@pytest.mark.parametrize(
    "other",
    [
        {"operation": "summarise", "title": "x"},
        {"scope": "user:alice", "title": "x"},
        {"title": "y"},
        {"title": "x", "page": 1},
        {},
    ],
)
async def test_what_was_not_asked_for_is_not_found(house: House, other: dict[str, Any]) -> None:
    await store(house, b"answer", title="x")

    assert not (await lookup(house, **other)).hit


async def test_scopes_are_apart(house: House) -> None:
    for scope in ("", "user:alice", "user:bob"):
        await store(house, scope.encode(), scope=scope, title="x")

    found = [await lookup(house, scope=scope, title="x") for scope in ("", "user:alice", "user:b")]

    assert [one.response for one in found] == [b"", b"user:alice", b""]
    assert [one.hit for one in found] == [True, True, False]


async def expire_in(house: House, interval: str) -> None:
    await house.admin.execute(
        "UPDATE cache.ai_responses_cache SET expires_at = now() + $1::text::interval", interval
    )


async def test_a_response_is_found_until_its_time_is_over(house: House) -> None:
    await store(house, b"answer", title="x")

    await expire_in(house, "1 minute")
    assert (await lookup(house, title="x")).hit
    await expire_in(house, "0")
    assert not (await lookup(house, title="x")).hit


@pytest.mark.parametrize(
    ("ttl", "kept"),
    [(None, 3600.0), (1, 1.0), (90.5, 90.5), (30 * 86400, 30 * 86400.0)],
)
async def test_how_long_a_response_is_kept(house: House, ttl: float | None, kept: float) -> None:
    await store(house, b"answer", ttl=None if ttl is None else seconds(ttl), title="x")

    row = await house.admin.fetchrow("SELECT created_at, expires_at FROM cache.ai_responses_cache")
    assert row is not None
    assert (row["expires_at"] - row["created_at"]).total_seconds() == kept


async def test_two_hundred_hits_at_once_are_all_counted(house: House) -> None:
    await store(house, b"answer", title="x")

    found = await asyncio.gather(*(lookup(house, title="x") for _ in range(200)))

    assert sorted(one.hit_count for one in found) == list(range(1, 201))
    assert {one.response for one in found} == {b"answer"}


async def test_a_later_response_replaces_an_earlier_one_and_starts_anew(house: House) -> None:
    await store(house, b"first", title="x", ttl=seconds(60))
    await lookup(house, title="x")
    again = await store(house, b"second", title="x")

    found = await lookup(house, title="x")

    assert (found.response, found.hit_count) == (b"second", 1)
    assert found.expires_at == again.expires_at
    assert await house.admin.fetchval("SELECT count(*) FROM cache.ai_responses_cache") == 1


async def test_storing_after_the_end_of_an_earlier_one_makes_it_found_again(house: House) -> None:
    await store(house, b"first", title="x")
    await expire_in(house, "0")

    await store(house, b"second", title="x")

    assert (await lookup(house, title="x")).response == b"second"


async def test_racing_stores_leave_one_whole_response(house: House) -> None:
    await asyncio.gather(*(store(house, b"%d" % n * 1000, title="x") for n in range(20)))

    found = (await lookup(house, title="x")).response
    assert found in {b"%d" % n * 1000 for n in range(20)}


@pytest.fixture
async def shelf(house: House) -> House:
    """Two operations, two inputs, two scopes."""
    for operation in ("translate", "summarise"):
        for title in ("x", "y"):
            for scope in ("", "user:alice"):
                await store(house, b"answer", operation=operation, scope=scope, title=title)
    return house


ALL = {
    (operation, title, scope)
    for operation in ("translate", "summarise")
    for title in ("x", "y")
    for scope in ("", "user:alice")
}


async def left(house: House) -> set[tuple[str, str, str]]:
    found = {
        one: (await lookup(house, operation=one[0], title=one[1], scope=one[2])).hit for one in ALL
    }
    return {one for one, hit in found.items() if hit}


@pytest.mark.parametrize(
    ("fields", "gone"),
    [
        ({}, {("x", ""), ("y", ""), ("x", "user:alice"), ("y", "user:alice")}),
        ({"scope": "user:alice"}, {("x", "user:alice"), ("y", "user:alice")}),
        ({"scope": ""}, {("x", ""), ("y", "")}),
        ({"input": struct(title="x")}, {("x", "")}),
        ({"input": struct(title="x"), "scope": "user:alice"}, {("x", "user:alice")}),
        ({"input": struct(title="z")}, set()),
        ({"scope": "user:bob"}, set()),
    ],
    ids=["operation", "scope", "shared", "input", "input of a scope", "no input", "no scope"],
)
async def test_what_is_invalidated_is_gone_and_nothing_else(
    shelf: House, fields: Mapping[str, Any], gone: set[tuple[str, str]]
) -> None:
    assert await forget(shelf, operation="translate", **fields) == len(gone)

    assert await left(shelf) == ALL - {("translate", title, scope) for title, scope in gone}
    assert await forget(shelf, operation="translate", **fields) == 0


def with_number(number: float) -> Struct:
    return Struct(fields={"n": Value(number_value=number)})


BAD_QUESTIONS: list[tuple[dict[str, Any], str]] = [
    ({"operation": ""}, "operation"),
    ({"operation": "a\0b"}, "operation"),
    ({"operation": "x" * 129}, "operation"),
    ({"operation": "x", "scope": "a\0b"}, "scope"),
    ({"operation": "x", "scope": "s" * 129}, "scope"),
    ({"operation": "x", "input": with_number(float("nan"))}, "input"),
    ({"operation": "x", "input": with_number(float("inf"))}, "input"),
]


@pytest.mark.parametrize(("fields", "field"), BAD_QUESTIONS)
async def test_a_bad_question_is_refused_by_every_call(
    house: House, fields: dict[str, Any], field: str
) -> None:
    cache, bearer = house.suite.cache, house.suite.bearer()
    for call in (
        lambda: cache.LookupResponse(cache_pb2.LookupResponseRequest(**fields), metadata=bearer),
        lambda: cache.StoreResponse(cache_pb2.StoreResponseRequest(**fields), metadata=bearer),
        lambda: cache.InvalidateResponses(
            cache_pb2.InvalidateResponsesRequest(**fields), metadata=bearer
        ),
    ):
        async with refused(INVALID, "INVALID_ARGUMENT") as seen:
            await call()
        assert details(seen[0])["BadRequest"].field_violations[0].field == field
    assert await house.admin.fetchval("SELECT count(*) FROM cache.ai_responses_cache") == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"response": b"x" * (MIB + 1)}, "response"),
        ({"ttl": Duration()}, "ttl"),
        ({"ttl": Duration(seconds=-1)}, "ttl"),
        ({"ttl": Duration(nanos=999_999_999)}, "ttl"),
        ({"ttl": Duration(seconds=30 * 86400 + 1)}, "ttl"),
        ({"ttl": Duration(seconds=30 * 86400, nanos=1_000_000)}, "ttl"),
        ({"ttl": Duration(seconds=2**60)}, "ttl"),
        # Not a duration at all: its parts contradict each other.
        ({"ttl": Duration(seconds=1, nanos=-2_000_000_000)}, "ttl"),
        ({"ttl": Duration(seconds=2, nanos=-1)}, "ttl"),
    ],
    ids=str,
)
async def test_a_bad_response_is_refused_and_not_kept(
    house: House, change: dict[str, Any], field: str
) -> None:
    request = cache_pb2.StoreResponseRequest(operation="x", **change)

    async with refused(INVALID, "INVALID_ARGUMENT") as seen:
        await house.suite.cache.StoreResponse(request, metadata=house.suite.bearer())

    assert details(seen[0])["BadRequest"].field_violations[0].field == field
    assert await house.admin.fetchval("SELECT count(*) FROM cache.ai_responses_cache") == 0


async def test_a_response_of_one_mebibyte_comes_back_whole(house: House) -> None:
    await store(house, b"x" * MIB, title="x")

    assert (await lookup(house, title="x")).response == b"x" * MIB


async def test_users_do_not_reach_into_the_response_cache(house: House) -> None:
    async with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
        await house.suite.cache.LookupResponse(
            cache_pb2.LookupResponseRequest(operation="x"), metadata=house.suite.as_user("alice")
        )
