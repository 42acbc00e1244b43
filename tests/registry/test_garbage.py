"""What nobody refers to goes, bytes included; what is held never does; drift is found."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceServicer, add_CacheServiceServicer_to_server
from glossa.registry.v1 import registry_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from prometheus_client import REGISTRY

from services.registry import collect as collect_module
from services.registry.collect import Collected, CollectGarbage
from services.registry.garbage_store import GarbageStore
from services.registry.objects import FolderObjects
from services.runtime.database import open_database
from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.refusals import refused
from tests.registry.replicas import (
    broken_invariants,
    check_health,
    collect,
    kept_hashes,
    replica,
    until_none,
)
from tests.registry.test_upload import counts, hash_of, stored
from tests.suite import Keys


@pytest.fixture
async def own(databases: Mapping[str, str], keys: Keys, tmp_path: Path) -> AsyncIterator[Registry]:
    """A Registry that no other test collects from."""
    async with replica(databases, keys, tmp_path) as registry:
        yield registry


def drifting(problem: str) -> float | None:
    """What the gauge of this process says."""
    return REGISTRY.get_sample_value(
        "glossa_registry_reference_health_findings", {"problem": problem}
    )


async def upload_and_delete(registry: Registry, content: bytes, owner: pb.Owner) -> None:
    file_id = (await registry.upload(content, owner)).file.file_id
    await registry.call("DeleteFile", pb.DeleteFileRequest(owner=owner, file_id=file_id))


async def test_a_document_nobody_refers_to_goes_with_its_bytes_and_pages(
    own: Registry, someone: pb.Owner
) -> None:
    gone, held = pdfs.unique_pdf("gone"), pdfs.unique_pdf("held")
    await own.upload(held, someone)
    file_id = (await own.upload(gone, someone)).file.file_id
    await own.call("ResolvePage", pb.ResolvePageRequest(owner=someone, file_id=file_id, page=1))
    await own.call("DeleteFile", pb.DeleteFileRequest(owner=someone, file_id=file_id))

    answer = await collect(own)

    assert (answer.documents, answer.freed_bytes) == (1, len(gone))
    assert (answer.orphan_objects, answer.failed) == (0, 0)
    assert kept_hashes(own) == {hash_of(held)}
    assert await own.rows("SELECT pdf_hash FROM registry.canonical_documents") == [(hash_of(held),)]
    assert await own.rows("SELECT page FROM registry.canonical_page_metadata") == []
    assert (await collect(own)).documents == 0


async def test_a_document_is_kept_for_its_grace_time_and_a_dry_run_removes_nothing(
    own: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("grace")
    await upload_and_delete(own, content, someone)
    assert (await collect(own, grace=Duration(seconds=3600))).documents == 0
    admin = own.as_service("admin")
    by_settings = await admin.call("CollectGarbage", pb.CollectGarbageRequest())
    assert by_settings.documents == 0
    assert (await collect(own, dry_run=True)).documents == 1
    assert kept_hashes(own) == {hash_of(content)}
    assert (await collect(own)).documents == 1


async def test_the_registry_collects_by_itself(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    settings: dict[str, Any] = {"garbage_every_seconds": 0.05, "garbage_grace_seconds": 0}
    async with replica(databases, keys, tmp_path, **settings) as registry:
        await upload_and_delete(registry, pdfs.unique_pdf("by itself"), someone)
        await until_none(registry, "SELECT 1 FROM registry.canonical_documents")
        assert kept_hashes(registry) == set()


async def test_a_negative_grace_is_refused_and_collecting_is_for_admins(registry: Registry) -> None:
    with refused() as told:
        await collect(registry, grace=Duration(seconds=-1))
    assert (told.code, told.field) == ("INVALID_ARGUMENT", "grace")
    for rpc, request in (
        ("CollectGarbage", pb.CollectGarbageRequest()),
        ("CheckReferenceHealth", pb.CheckReferenceHealthRequest()),
    ):
        with refused() as told:
            await registry.call(rpc, request)
        assert told.code == "PERMISSION_DENIED"


async def test_bytes_no_document_knows_of_are_removed(own: Registry, someone: pb.Owner) -> None:
    known, orphan = pdfs.unique_pdf("known"), pdfs.unique_pdf("orphan")
    await own.upload(known, someone)
    path = stored(own, orphan)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(orphan)
    assert (await collect(own, dry_run=True)).orphan_objects == 1
    assert path.exists()
    assert (await collect(own)).orphan_objects == 1
    assert kept_hashes(own) == {hash_of(known)}
    assert await broken_invariants(own) == []


async def test_what_a_crash_left_half_published_is_removed_when_it_is_old(
    own: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("half published")
    await own.upload(content, someone)
    folder = stored(own, content).parent
    fresh, old = folder / ".fresh.pdf.0123", folder / ".old.pdf.4567"
    for path in (fresh, old):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    await collect(own)
    assert fresh.exists()
    assert not old.exists()


@asynccontextmanager
async def the_cache(calls: list[Any], failures: int = 0) -> AsyncIterator[str]:
    """The Cache as far as the Registry knows it: it hears which documents are gone."""

    class Cache(CacheServiceServicer):
        async def InvalidateGenerations(self, request: Any, context: Any) -> Any:
            calls.append((request.pdf_hash, request.reason, dict(context.invocation_metadata())))
            if len(calls) <= failures:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            return cache_pb2.InvalidateGenerationsResponse()

    server = grpc.aio.server()
    add_CacheServiceServicer_to_server(Cache(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


async def test_the_cache_is_told_of_a_collected_document_until_it_has_heard(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("told")
    calls: list[Any] = []
    settings = {"token_file": keys.token_file("registry")}
    async with (
        the_cache(calls, failures=4) as address,
        replica(databases, keys, tmp_path, cache_address=address, **settings) as registry,
    ):
        await upload_and_delete(registry, content, someone)
        await collect(registry)
        await until_none(registry, "SELECT 1 FROM registry.collected_documents")
    assert {(pdf_hash, reason) for pdf_hash, reason, _ in calls} == {
        (hash_of(content), "DOCUMENT_COLLECTED")
    }
    assert len(calls) == 5
    assert calls[-1][2]["authorization"].startswith("Bearer ")


async def test_a_document_that_came_back_is_not_told_of(
    own: Registry, someone: pb.Owner, databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    back, gone = pdfs.unique_pdf("came back"), pdfs.unique_pdf("stayed away")
    for content in (back, gone):
        await upload_and_delete(own, content, someone)
    await collect(own)  # this one knows no Cache: it is told later
    await own.upload(back, someone)
    calls: list[Any] = []
    settings = {"token_file": keys.token_file("registry")}
    async with (
        the_cache(calls) as address,
        replica(databases, keys, tmp_path, cache_address=address, **settings) as registry,
    ):
        await until_none(registry, "SELECT 1 FROM registry.collected_documents")
    assert [call[0] for call in calls] == [hash_of(gone)]


async def test_an_upload_during_its_documents_collection_ends_with_bytes(
    own: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    """Collection is announced and waits for the lock: the upload must not trust the bytes."""
    content = pdfs.unique_pdf("in between")
    await upload_and_delete(own, content, someone)
    async with own.document_locked(hash_of(content)) as until_waiting:
        collection = asyncio.ensure_future(collect(own))
        await until_waiting(1)
        upload = asyncio.ensure_future(own.upload(content, another))
        await until_waiting(2)
    await asyncio.gather(collection, upload)
    assert await counts(own, content) == (1, 1, 1)
    assert stored(own, content).read_bytes() == content
    assert (await check_health(own)).findings_count == 0


@pytest.mark.parametrize("repeat", range(3))
async def test_collection_racing_uploads_never_loses_bytes(
    own: Registry, someone: pb.Owner, another: pb.Owner, repeat: int
) -> None:
    content = pdfs.unique_pdf(f"race {repeat}")

    async def come_and_go(owner: pb.Owner) -> None:
        for _ in range(8):
            await upload_and_delete(own, content, owner)
        await own.upload(content, owner)

    async def collect_all_the_time() -> None:
        while not done.is_set():
            await collect(own)

    done = asyncio.Event()
    collecting = [asyncio.ensure_future(collect_all_the_time()) for _ in range(2)]
    await asyncio.gather(come_and_go(someone), come_and_go(another))
    done.set()
    await asyncio.gather(*collecting)

    assert await counts(own, content) == (2, 2, 2)
    assert stored(own, content).read_bytes() == content


class Stalled(FolderObjects):
    """A bucket that takes a request to remove something and never answers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked = 0

    async def remove(self, pdf_hash: str) -> None:
        self.asked += 1
        await asyncio.Event().wait()


@pytest.mark.parametrize(("seconds", "asked"), [(0.05, 1), (-1.0, 0)], ids=["stalls", "slept"])
async def test_a_collection_that_takes_too_long_leaves_everything_for_the_next(
    own: Registry,
    databases: Mapping[str, str],
    someone: pb.Owner,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    asked: int,
) -> None:
    """Its lock may be lost by then: bytes of an upload meanwhile must not go with it."""
    content = pdfs.unique_pdf(f"cannot go {seconds}")
    await upload_and_delete(own, content, someone)
    objects = Stalled(Path(own.config.store_url))
    async with open_database(databases["registry"], application_name="test") as database:
        garbage = CollectGarbage(
            store=GarbageStore(database), objects=objects, grace=timedelta(seconds=0)
        )
        with monkeypatch.context() as hurried:
            hurried.setattr(collect_module, "TOO_LATE_SECONDS", seconds)
            assert await garbage.run_once() == Collected(failed=1)
    assert objects.asked == asked
    assert await own.rows("SELECT pdf_hash FROM registry.canonical_documents") == [
        (hash_of(content),)
    ]
    assert stored(own, content).read_bytes() == content
    assert (await collect(own)).documents == 1
    assert kept_hashes(own) == set()


async def plant(registry: Registry, statement: str, *values: object) -> None:
    await registry.rows(statement, *values)


async def test_a_document_that_is_held_keeps_its_bytes_though_its_count_is_wrong(
    own: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("miscounted")
    await own.upload(content, someone)
    await plant(
        own,
        "UPDATE registry.canonical_documents SET reference_count = 0,"
        " unreferenced_at = now() - interval '40 days' WHERE pdf_hash = $1",
        hash_of(content),
    )

    answer = await collect(own)

    assert (answer.documents, answer.failed) == (0, 1)
    assert kept_hashes(own) == {hash_of(content)}
    await check_health(own, repair=True)
    assert (await check_health(own)).findings_count == 0


async def test_planted_drift_is_found_repaired_and_gone(own: Registry, someone: pb.Owner) -> None:
    contents = [pdfs.unique_pdf(f"drift {number}") for number in range(5)]
    files = [(await own.upload(content, someone)).file for content in contents]
    assert (await check_health(own)).findings_count == 0
    await plant(
        own,
        "UPDATE registry.canonical_documents SET reference_count = 7 WHERE pdf_hash = $1",
        files[4].pdf_hash,
    )
    await plant(
        own, "DELETE FROM registry.canonical_document_refs WHERE ref_id = $1", files[1].file_id
    )
    await plant(
        own,
        "INSERT INTO registry.canonical_document_refs (ref_type, ref_id, pdf_hash)"
        " VALUES ('file', $1, $2)",
        uuid4(),
        files[2].pdf_hash,
    )
    await plant(
        own,
        "UPDATE registry.canonical_document_refs SET pdf_hash = $2 WHERE ref_id = $1",
        files[3].file_id,
        files[0].pdf_hash,
    )
    problem = pb.HealthProblem.Name

    found = await check_health(own)
    names = {problem(finding.problem).removeprefix("HEALTH_PROBLEM_") for finding in found.findings}
    assert names == {"COUNT_DRIFT", "FILE_WITHOUT_REFERENCE", "REFERENCE_WITHOUT_FILE"}
    drift = {
        finding.pdf_hash: (finding.counted, finding.actual)
        for finding in found.findings
        if finding.problem == pb.HEALTH_PROBLEM_COUNT_DRIFT
    }
    assert [drift[file.pdf_hash] for file in files] == [(1, 2), (1, 0), (1, 2), (1, 0), (7, 1)]
    assert found.repaired_count == 0
    assert (await check_health(own)).findings == found.findings

    assert drifting("count_drift") == 5
    repaired = await check_health(own, repair=True)
    assert repaired.repaired_count == repaired.findings_count == found.findings_count
    assert drifting("count_drift") == 0
    assert (await check_health(own)).findings_count == 0
    assert [await counts(own, content) for content in contents] == [(1, 1, 1)] * 5


async def test_missing_and_shortened_bytes_are_found_and_mended_by_an_upload(
    own: Registry, someone: pb.Owner
) -> None:
    contents = [pdfs.unique_pdf(f"lost {number}") for number in range(3)]
    for content in contents:
        await own.upload(content, someone)
    stored(own, contents[0]).unlink()
    stored(own, contents[1]).write_bytes(contents[1][:100])

    found = await check_health(own)
    assert {finding.pdf_hash for finding in found.findings} == {
        hash_of(content) for content in contents[:2]
    }
    assert {finding.problem for finding in found.findings} == {pb.HEALTH_PROBLEM_BYTES_MISSING}
    assert (await check_health(own, check_bytes=False)).findings_count == 0
    assert drifting("bytes_missing") == 2

    for content in contents:
        await own.upload(content, someone)
    assert (await check_health(own)).findings_count == 0
    assert drifting("bytes_missing") == 0
