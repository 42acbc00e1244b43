"""Who remembers an access is told when it is gone: by every replica, in order, without a gap."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import grpc
from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from services.registry.__main__ import compose
from services.registry.config import Config
from services.registry.revocation_store import (
    ADD_REVOCATIONS,
    LOCK_REVOCATIONS,
    PRUNE_REVOCATIONS,
    RevocationStore,
    add_revocations,
)
from services.registry.revocations import Revocations
from services.runtime.database import open_database
from services.runtime.server import running
from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.refusals import refused
from tests.registry.replicas import configured, replica
from tests.registry.test_upload import hash_of
from tests.suite import Keys


@asynccontextmanager
async def watching(registry: Registry) -> AsyncIterator[Any]:
    """A stream that has heard its first message."""
    call: Any = registry.stub.WatchRevocations(
        pb.WatchRevocationsRequest(), metadata=registry.as_service("cache").metadata
    )
    assert list((await call.read()).pdf_hashes) == []
    yield call
    call.cancel()


async def next_hashes(call: Any) -> list[str]:
    while not (message := await call.read()).pdf_hashes:
        pass
    return list(message.pdf_hashes)


async def test_a_deleted_file_is_told_to_the_watchers_of_every_replica(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("revoked")
    async with (
        replica(databases, keys, tmp_path) as one,
        replica(databases, keys, tmp_path) as other,
        watching(one) as here,
        watching(one) as here_too,
        watching(other) as there,
    ):
        file_id = (await one.upload(content, someone)).file.file_id
        await one.call("DeleteFile", pb.DeleteFileRequest(owner=someone, file_id=file_id))

        for call in (here, here_too, there):
            assert await next_hashes(call) == [hash_of(content)]


async def test_a_deletion_is_answered_when_the_watchers_here_have_been_told(
    databases: Mapping[str, str], tmp_path: Path
) -> None:
    heard: list[str] = []
    async with open_database(databases["registry"], application_name="test") as database:
        revocations = Revocations(RevocationStore(database))

        async def listen(news: AsyncIterator[list[str]]) -> None:
            async for pdf_hashes in news:
                heard.extend(pdf_hashes)

        async with revocations.running(), aclosing(revocations.watch()) as news:
            assert await anext(news) == []
            listening = asyncio.ensure_future(listen(news))
            async with database.transaction() as connection:
                await add_revocations(connection, ["7" * 64])
            await revocations.settle()
            assert heard == ["7" * 64]
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def test_messages_keep_coming_while_nothing_happens(registry: Registry) -> None:
    async with watching(registry) as call:
        for _ in range(3):
            assert list((await call.read()).pdf_hashes) == []


async def test_a_late_watcher_is_not_told_what_happened_before(
    registry: Registry, someone: pb.Owner
) -> None:
    before, after = pdfs.unique_pdf("before"), pdfs.unique_pdf("after")
    files = [(await registry.upload(content, someone)).file.file_id for content in (before, after)]
    await registry.call("DeleteFile", pb.DeleteFileRequest(owner=someone, file_id=files[0]))
    async with watching(registry) as call:
        await registry.call("DeleteFile", pb.DeleteFileRequest(owner=someone, file_id=files[1]))
        assert await next_hashes(call) == [hash_of(after)]


async def test_a_deletion_that_is_undone_tells_nobody_and_a_slow_one_is_not_overtaken(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, someone: pb.Owner
) -> None:
    """A number that becomes visible late would be missed by who has seen a larger one."""
    content = pdfs.unique_pdf("overtaking")
    slow_hash = "5" * 64
    async with replica(databases, keys, tmp_path) as registry, watching(registry) as call:
        file_id = (await registry.upload(content, someone)).file.file_id
        connection = await asyncpg.connect(databases["registry"])
        try:
            slow = connection.transaction()
            await slow.start()
            await connection.execute(LOCK_REVOCATIONS)
            await connection.execute(ADD_REVOCATIONS, [slow_hash])
            request = pb.DeleteFileRequest(owner=someone, file_id=file_id)
            quick = asyncio.ensure_future(registry.call("DeleteFile", request))
            async with registry.document_locked("0" * 64) as until_waiting:
                await until_waiting(1)
            assert not quick.done()
            await slow.commit()
            await quick
        finally:
            await connection.close()
        told = await next_hashes(call)
        if len(told) == 1:  # the two transactions may be found by one look or by two
            told += await next_hashes(call)
        assert told == [slow_hash, hash_of(content)]


async def test_a_drained_replica_ends_its_streams(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        drained = await stack.enter_async_context(AsyncExitStack())
        here = await drained.enter_async_context(
            running("registry", configured(databases, keys, tmp_path), compose)
        )
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(here.address))
        served = Registry(
            stub=RegistryServiceStub(channel), keys=keys, config=Config.model_construct()
        )
        async with watching(served) as call:
            with refused() as told:
                await asyncio.gather(drained.aclose(), _until_end(call))
    assert (told.code, told.reason) == ("UNAVAILABLE", "DRAINING")


async def _until_end(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_watching_is_for_the_cache_alone(registry: Registry) -> None:
    for scope in ("gateway", "worker", "admin"):
        caller = registry.as_service(scope)
        with refused() as told:
            await caller.stub.WatchRevocations(
                pb.WatchRevocationsRequest(), metadata=caller.metadata
            ).read()
        assert told.code == "PERMISSION_DENIED"


async def test_old_revocations_are_pruned_and_new_ones_kept(databases: Mapping[str, str]) -> None:
    connection = await asyncpg.connect(databases["registry"])
    try:
        await connection.execute(ADD_REVOCATIONS, ["1" * 64, "2" * 64])
        await connection.execute(
            "UPDATE registry.revocations SET revoked_at = now() - interval '2 hours'"
            " WHERE pdf_hash LIKE '1%'"
        )
        await connection.execute(PRUNE_REVOCATIONS, timedelta(hours=1))
        assert await connection.fetchval(
            "SELECT array_agg(pdf_hash) FROM registry.revocations"
        ) == ["2" * 64]
    finally:
        await connection.close()
