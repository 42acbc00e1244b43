"""A hundred uploads of one file at once, and processes killed in the middle of uploading."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from services.local.free_ports import free_ports
from services.local.processes import is_serving
from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.replicas import (
    broken_invariants,
    check_health,
    collect,
    configured,
    kept_hashes,
    replica,
    until_none,
)
from tests.registry.test_upload import counts, hash_of
from tests.suite import Keys

SIZE_BYTES = 20_000_000
CROWD = 100
DOCUMENTS = "FROM registry.canonical_documents"


async def test_a_hundred_uploads_of_one_large_file_at_once_give_one_file_and_one_blob(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    noise = os.urandom(SIZE_BYTES)
    content = pdfs.raw_pdf(
        b"BT ET", more=(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(noise), noise),)
    )
    async with replica(databases, keys, tmp_path) as registry:
        answers = await asyncio.gather(*(registry.upload(content, someone) for _ in range(CROWD)))

        assert len(answers) == CROWD
        assert {answer.file.file_id for answer in answers} == {answers[0].file.file_id}
        notes = [answer.note for answer in answers]
        assert notes.count(pb.UPLOAD_NOTE_CREATED) == 1
        assert set(notes) <= {
            pb.UPLOAD_NOTE_CREATED,
            pb.UPLOAD_NOTE_DEDUPLICATED,
            pb.UPLOAD_NOTE_DUPLICATE_DETECTED,
        }
        assert await counts(registry, content) == (1, 1, 1)
        assert kept_hashes(registry) == {hash_of(content)}
        assert list(registry.config.spool_dir.iterdir()) == []
        assert (await check_health(registry)).findings_count == 0


def make_old(folder: Path) -> None:
    """What was left between two steps is old by the time somebody looks."""
    for path in folder.glob("*/.*"):
        os.utime(path, (0, 0))


@asynccontextmanager
async def registry_process(
    databases: Mapping[str, str], keys: Keys, folder: Path
) -> AsyncIterator[tuple[Registry, asyncio.subprocess.Process]]:
    """A Registry that can be killed."""
    config = configured(databases, keys, folder)
    port = free_ports().port("registry")
    environment = {
        "PATH": os.environ["PATH"],
        "GLOSSA_PORT": str(port),
        "GLOSSA_DATABASE_URL": databases["registry"],
        "GLOSSA_VERIFY_KEY_FILE": str(keys.verify_key_file),
        "GLOSSA_STORE_URL": config.store_url,
        "GLOSSA_SPOOL_DIR": str(config.spool_dir),
        "GLOSSA_DETECT_AT_UPLOAD": "false",
        "GLOSSA_LOG_LEVEL": "ERROR",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.registry", env=environment
    )
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            while not await is_serving(channel):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            stub = RegistryServiceStub(channel)
            yield Registry(stub=stub, keys=keys, config=config).as_service("gateway"), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("known", [1, 4, 9])
async def test_a_registry_killed_while_it_takes_files_in_leaves_nothing_behind(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner, known: int
) -> None:
    """Killed when some documents are announced: some of them put, some registered, some neither."""
    contents = [pdfs.unique_pdf(f"killed {known} {number}", pages=3) for number in range(12)]
    async with registry_process(databases, keys, tmp_path) as (registry, process):
        uploads = [asyncio.ensure_future(registry.upload(one, someone)) for one in contents]
        await until_none(registry, f"SELECT 1 {DOCUMENTS} HAVING count(*) < {known}")
        process.send_signal(signal.SIGKILL)
        await asyncio.gather(*uploads, return_exceptions=True)

    acknowledged = {
        upload.result().file.pdf_hash for upload in uploads if upload.exception() is None
    }
    async with replica(databases, keys, tmp_path) as registry:
        assert await broken_invariants(registry) == []
        assert (await check_health(registry)).findings_count == 0
        held = await registry.rows("SELECT pdf_hash FROM registry.canonical_document_refs")
        assert acknowledged <= {pdf_hash for (pdf_hash,) in held}
        make_old(Path(registry.config.store_url))
        await collect(registry)
        assert kept_hashes(registry) == {pdf_hash for (pdf_hash,) in held}

        answers = [await registry.upload(one, someone) for one in contents]
        assert [answer.file.pdf_hash for answer in answers] == [hash_of(one) for one in contents]
        assert kept_hashes(registry) == {hash_of(one) for one in contents}
