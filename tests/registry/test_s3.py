"""The object store over S3, spoken to a real server on this machine."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import obstore
import pytest
from glossa.registry.v1 import registry_pb2 as pb
from moto.server import ThreadedMotoServer
from obstore.store import S3Store

from services.registry.objects import NoSuchSource, Objects, key, open_objects
from services.runtime.errors import DependencyDown
from tests.registry import pdfs
from tests.registry.replicas import check_health, collect, replica
from tests.registry.test_objects import put, read
from tests.registry.test_references import downloaded
from tests.registry.test_upload import hash_of
from tests.suite import Keys

HASHES = [digit * 64 for digit in "0123"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
async def bucket(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A new bucket, and the environment a Registry would find it by."""
    name = f"bucket-{tmp_path.name.replace('_', '-').lower()}"[:60].rstrip("-")
    reader, writer = await asyncio.open_connection(*endpoint.removeprefix("http://").split(":"))
    writer.write(f"PUT /{name} HTTP/1.1\r\nhost: s3\r\ncontent-length: 0\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    writer.close()
    for variable, value in {
        "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(variable, value)
    return name


@pytest.fixture
async def objects(bucket: str, tmp_path: Path) -> AsyncIterator[Objects]:
    async with open_objects(f"s3://{bucket}/documents", spool_dir=tmp_path) as objects:
        yield objects


async def test_bytes_come_back_as_they_went_in_over_s3(objects: Objects, tmp_path: Path) -> None:
    content = os.urandom(12 << 20)  # several parts
    await put(objects, HASHES[0], content)
    await put(objects, HASHES[0], content)
    assert await objects.size(HASHES[0]) == len(content)
    assert await read(objects, HASHES[0]) == content


async def test_what_is_in_a_bucket_is_listed_and_removed(objects: Objects) -> None:
    for pdf_hash in HASHES:
        await put(objects, pdf_hash, pdf_hash.encode() * 2)
    listed = [one async for piece in objects.list_objects() for one in piece]
    assert sorted(listed) == [(pdf_hash, 128) for pdf_hash in HASHES]

    for _ in range(2):
        await objects.remove(HASHES[0])
    assert await objects.size(HASHES[0]) is None
    with pytest.raises(DependencyDown):
        await read(objects, HASHES[0])
    assert await objects.remove_unfinished() == 0


async def test_bytes_under_somebody_elses_key_are_read_and_missing_ones_told_apart(
    objects: Objects, bucket: str, endpoint: str
) -> None:
    store = S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True})
    await obstore.put_async(store, "documents/old/lecture.pdf", b"%PDF- old")
    async with objects.opened_source("old/lecture.pdf") as descriptor:
        assert os.pread(descriptor, 100, 0) == b"%PDF- old"
    with pytest.raises(NoSuchSource):
        async with objects.opened_source("old/nothing.pdf"):
            pass
    assert key(HASHES[0]) == f"00/{HASHES[0]}.pdf"


async def test_a_bucket_that_is_not_there_is_the_stores_trouble(
    bucket: str, tmp_path: Path
) -> None:
    async with open_objects("s3://no-such-bucket", spool_dir=tmp_path) as objects:
        with pytest.raises(DependencyDown) as trouble:
            await put(objects, HASHES[0], b"content")
    assert trouble.value.reason == "OBJECT_STORE_UNAVAILABLE"


async def test_a_registry_over_s3_takes_in_reads_collects_and_counts(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, bucket: str, someone: pb.Owner
) -> None:
    kept, gone = pdfs.unique_pdf("kept in a bucket"), pdfs.unique_pdf("gone from a bucket")
    async with replica(databases, keys, tmp_path, store_url=f"s3://{bucket}/x") as registry:
        await registry.upload(kept, someone)
        file_id = (await registry.upload(gone, someone)).file.file_id
        for content in (kept, gone):
            request = pb.ResolvePageRequest(owner=someone, pdf_hash=hash_of(content), page=1)
            assert (await registry.call("ResolvePage", request)).total_pages == 1
        await registry.call("DeleteFile", pb.DeleteFileRequest(owner=someone, file_id=file_id))
        assert (await collect(registry)).documents == 1
        assert (await check_health(registry)).findings_count == 0
        _, received = await downloaded(registry, owner=someone, pdf_hash=hash_of(kept))
        assert received == kept
    async with open_objects(f"s3://{bucket}/x", spool_dir=tmp_path) as objects:
        left = [one.pdf_hash async for piece in objects.list_objects() for one in piece]
    assert left == [hash_of(kept)]
