"""A document is looked at after its upload, within bounds, and whoever asked is told, signed."""

import asyncio
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from glossa.registry.v1 import registry_pb2 as pb

from services.registry import __main__ as registry_main
from services.registry import callbacks, metrics, process
from services.registry.callbacks import CallbackRules
from services.registry.config import Config
from services.registry.errors import CallbackRefused
from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.refusals import refused
from tests.registry.replicas import configured, replica
from tests.registry.test_upload import hash_of, stored
from tests.suite import Keys

SECRET = "a secret that both sides know, and nobody else"
CALLING: dict[str, Any] = {
    "detect_at_upload": True,
    "callback_secret": SECRET,
    "callback_allow_private": True,
}


async def until(happened: Callable[[], Awaitable[bool]]) -> None:
    while not await happened():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def until_processed(registry: Registry, content: bytes) -> None:
    async def processed() -> bool:
        sql = (
            "SELECT processed_at IS NOT NULL FROM registry.canonical_documents WHERE pdf_hash = $1"
        )
        return (await registry.rows(sql, hash_of(content))) == [(True,)]

    await until(processed)


async def known_pages(registry: Registry, content: bytes) -> list[Any]:
    sql = (
        "SELECT page, error_reason FROM registry.canonical_page_metadata WHERE pdf_hash = $1"
        " ORDER BY page"
    )
    return await registry.rows(sql, hash_of(content))


async def test_all_pages_are_known_soon_after_an_upload(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("processed", pages=40)
    async with replica(databases, keys, tmp_path, detect_at_upload=True) as registry:
        first = await registry.upload(content, someone)
        await until_processed(registry, content)
        assert [page for page, _ in await known_pages(registry, content)] == [*range(1, 41)]
        again = await registry.upload(content, someone)
    assert first.note == pb.UPLOAD_NOTE_CREATED
    assert not first.document.HasField("processed_at")
    assert again.note == pb.UPLOAD_NOTE_DEDUPLICATED
    assert again.document.HasField("processed_at")


async def test_a_document_still_being_looked_at_is_a_duplicate_upload(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("still under way")
    async with replica(databases, keys, tmp_path, detect_at_upload=True) as registry:
        await registry.upload(content, someone)
        await until_processed(registry, content)
        await registry.rows(
            "UPDATE registry.canonical_documents SET processed_at = NULL,"
            " processing_until = now() + interval '1 hour'"
        )
        again = await registry.upload(content, someone)
    assert again.note == pb.UPLOAD_NOTE_DUPLICATE_UPLOAD


async def test_what_a_dead_replica_left_is_taken_up_when_its_claim_runs_out(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("left behind", pages=3)
    async with replica(databases, keys, tmp_path) as registry:
        await registry.upload(content, someone)
        await registry.rows(
            "UPDATE registry.canonical_documents SET processed_at = NULL,"
            " processing_until = now() - interval '1 second'"
        )
        await until_processed(registry, content)
        assert len(await known_pages(registry, content)) == 3


async def test_a_hostile_document_is_given_up_after_a_few_costly_pages(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    someone: pb.Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "PAGES_AT_ONCE", 1)
    content = pdfs.joined(pdfs.text_pdf("good"), *[pdfs.endless_pdf()] * 6)
    settings: dict[str, Any] = {"detect_at_upload": True, "pdf_cpu_seconds": 1}
    async with replica(databases, keys, tmp_path, **settings) as registry:
        await registry.upload(content, someone)
        await until_processed(registry, content)
        assert await known_pages(registry, content) == [
            (1, None),
            *((page, "PDF_TIMEOUT") for page in (2, 3, 4)),
        ]


async def test_a_store_that_is_away_is_not_held_against_the_document(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    someone: pb.Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "PUT_OFF", timedelta(0))
    monkeypatch.setattr(registry_main, "DUTIES_EVERY", timedelta(milliseconds=10))
    content = pdfs.unique_pdf("waits for the store", pages=3)
    put_off = metrics.put_off_documents._value
    async with replica(databases, keys, tmp_path) as registry:
        await registry.upload(content, someone)
        kept = stored(registry, content)
        kept.rename(tmp_path / "away.pdf")
        before = put_off.get()
        await registry.rows("UPDATE registry.canonical_documents SET processed_at = NULL")

        async def away_for_long() -> bool:
            return bool(put_off.get() - before > process.MOST_ATTEMPTS)

        await until(away_for_long)
        (tmp_path / "away.pdf").rename(kept)
        await until_processed(registry, content)
        assert await known_pages(registry, content) == [(page, None) for page in (1, 2, 3)]
        attempts = "SELECT processing_attempts FROM registry.canonical_documents"
        assert await registry.rows(attempts) == [(1,)]


@asynccontextmanager
async def listener(answers: list[bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A gateway that is called back; it answers as told and remembers what it was sent."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        heard.append(head + await reader.readexactly(length))
        writer.write(answers.pop(0) if answers else b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/told?by=glossa", heard


async def callback_of(registry: Registry, owner: pb.Owner, file_id: str) -> pb.Callback:
    answer = await registry.call("GetFile", pb.GetFileRequest(owner=owner, file_id=file_id))
    callback: pb.Callback = answer.file.callback
    return callback


async def until_state(
    registry: Registry, owner: pb.Owner, file_id: str, state: pb.CallbackState.ValueType
) -> pb.Callback:
    async def there() -> bool:
        return (await callback_of(registry, owner, file_id)).state == state

    await until(there)
    return await callback_of(registry, owner, file_id)


async def test_whoever_asked_is_told_signed_when_processing_ends(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("told", pages=2)
    async with (
        listener([]) as (url, heard),
        replica(databases, keys, tmp_path, **CALLING) as registry,
    ):
        uploaded = await registry.upload(content, someone, callback_url=url)
        assert uploaded.file.callback.url == url
        file_id = uploaded.file.file_id
        done = await until_state(registry, someone, file_id, pb.CALLBACK_STATE_DELIVERED)
    assert (done.attempts, done.last_error) == (1, "")
    [request] = heard
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /told?by=glossa HTTP/1.1\r\n")
    told = json.loads(body)
    assert (told["event"], told["file_id"]) == ("file.processed", file_id)
    assert (told["pdf_hash"], told["total_pages"], told["broken_pages"]) == (hash_of(content), 2, 0)
    signature = head.split(b"glossa-signature: ")[1].split(b"\r\n")[0].decode()
    moment, signed = (part.partition("=")[2] for part in signature.split(","))
    expected = hmac.new(SECRET.encode(), f"{moment}.".encode() + body, hashlib.sha256)
    assert signed == expected.hexdigest()


async def test_an_upload_of_what_is_processed_already_is_told_too(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    someone: pb.Owner,
    another: pb.Owner,
) -> None:
    content = pdfs.unique_pdf("told at once")
    async with (
        listener([]) as (url, heard),
        replica(databases, keys, tmp_path, **CALLING) as registry,
    ):
        await registry.upload(content, another)
        await until_processed(registry, content)
        again = await registry.upload(content, someone, callback_url=url)
        await until_state(registry, someone, again.file.file_id, pb.CALLBACK_STATE_DELIVERED)
    [request] = heard
    told = json.loads(request.partition(b"\r\n\r\n")[2])
    # Not when it was processed for another: that somebody else holds it is not told.
    assert datetime.fromisoformat(told["processed_at"]) >= again.file.created_at.ToDatetime(UTC)


async def test_a_callback_is_tried_again_and_given_up_in_the_end(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    someone: pb.Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callbacks, "DELAYS", (timedelta(0),) * 3)
    answers = [
        b"HTTP/1.1 500 Oh\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\n\r\n",
        b"what?\r\n",
    ]
    async with (
        listener(answers[:]) as (url, heard),
        replica(databases, keys, tmp_path, **CALLING) as registry,
    ):
        file = (await registry.upload(pdfs.unique_pdf("again"), someone, callback_url=url)).file
        done = await until_state(registry, someone, file.file_id, pb.CALLBACK_STATE_DELIVERED)
        assert (done.attempts, len(heard)) == (4, 4)
        bodies = {request.partition(b"\r\n\r\n")[2] for request in heard}
        assert len(bodies) == 1  # the same message, with the same id

        always = [b"HTTP/1.1 503 No\r\n\r\n"] * 4
        async with listener(always) as (bad_url, _):
            file = (
                await registry.upload(pdfs.unique_pdf("never"), someone, callback_url=bad_url)
            ).file
            failed = await until_state(registry, someone, file.file_id, pb.CALLBACK_STATE_FAILED)
    assert (failed.attempts, failed.last_error) == (4, "answered 503")


async def test_a_private_address_is_not_called_even_behind_a_name(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    """A name may mean another address by the time we call it: it is looked up then, once."""
    settings = CALLING | {"callback_allow_private": False}
    async with (
        listener([]) as (url, heard),
        replica(databases, keys, tmp_path, **settings) as registry,
    ):
        port = url.split(":")[2].partition("/")[0]
        named = f"https://localhost:{port}/"
        file = (await registry.upload(pdfs.unique_pdf("inwards"), someone, callback_url=named)).file
        failed = await until_state(registry, someone, file.file_id, pb.CALLBACK_STATE_FAILED)
    assert "private" in failed.last_error
    assert heard == []


async def test_a_name_server_that_does_not_answer_keeps_nobody_else_waiting(
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
    someone: pb.Owner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uploads need threads too: were they the same, these would wait for the names."""
    resolve, answered, asked = socket.getaddrinfo, threading.Event(), threading.Semaphore(0)

    def slow(host: Any, *arguments: Any, **more: Any) -> Any:
        if host == "slow.example":
            asked.release()
            answered.wait()
            raise socket.gaierror
        return resolve(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    async with replica(databases, keys, tmp_path, **CALLING) as registry:
        try:
            for number in range(2):
                content = pdfs.unique_pdf(f"slow name {number}")
                await registry.upload(content, someone, callback_url="https://slow.example/")
                await until(lambda: _acquired(asked))
            other = await registry.upload(pdfs.unique_pdf("another"), someone)
        finally:
            answered.set()
            loop.set_default_executor(ThreadPoolExecutor())
    assert other.note == pb.UPLOAD_NOTE_CREATED


async def _acquired(asked: threading.Semaphore) -> bool:
    return asked.acquire(blocking=False)


PUBLIC = CallbackRules(secret=SECRET.encode())


@pytest.mark.parametrize(
    "address", ["64:ff9b::a9fe:a9fe", "2002:7f00:1::", "::7f00:1", "fec0::1", "::ffff:10.0.0.1"]
)
def test_an_inner_address_in_disguise_is_not_called(address: str) -> None:
    assert not PUBLIC.may_call(address)
    assert PUBLIC.may_call("2606:4700::1111")


async def test_a_host_that_is_no_name_is_put_off_like_any_other(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    async with replica(databases, keys, tmp_path, **CALLING) as registry:
        odd = "https://a..b/"
        file = (await registry.upload(pdfs.unique_pdf("odd"), someone, callback_url=odd)).file
        tried = "SELECT 1 FROM registry.callbacks WHERE last_error = 'has no address'"
        while not await registry.rows(tried):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert file.file_id


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "http://example.org/",
        "ftp://example.org/",
        "https:///path",
        "https://user:word@example.org/",
        "https://example.org/#part",
        "https://example.org:99999/",
        "https://exa mple.org/",
        "https://example.org/\r\nx-evil: 1",
        "https://ex\u00e4mple.org/",
        "https://127.0.0.1/",
        "https://10.0.0.8/",
        "https://169.254.169.254/latest/meta-data",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[fd00::1]/",
        "https://224.0.0.1/",
        "https://0.0.0.0/",
        "https://example.org/" + "x" * 2000,
    ],
)
def test_an_address_we_would_not_call_is_refused(url: str) -> None:
    with pytest.raises(CallbackRefused):
        PUBLIC.check(url)


@pytest.mark.parametrize("url", ["https://example.org/a?b=c", "https://93.184.216.34:8443/"])
def test_an_address_out_in_the_world_is_called(url: str) -> None:
    assert PUBLIC.check(url) == url


async def test_without_a_secret_callbacks_are_refused_before_anything_is_stored(
    registry: Registry, someone: pb.Owner
) -> None:
    with refused() as told:
        await registry.upload(
            pdfs.unique_pdf("unsigned"), someone, callback_url="https://example.org/"
        )
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", "CALLBACK_REFUSED")
    assert told.field == "header.callback_url"


def test_a_short_secret_is_no_secret(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="32 characters"):
        configured(databases, keys, tmp_path, callback_secret="short")
    assert Config.model_fields["callback_secret"].default.get_secret_value() == ""
