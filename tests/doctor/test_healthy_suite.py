"""A suite that has really worked is sound: pages, hits, joins, failures, refunds, deletions."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import asyncpg
import grpc
import pytest
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import SecretStr

from services.doctor.bounds import configured_bounds
from services.doctor.examine import find_violations
from services.doctor.stored_bytes import examine_bytes, open_store
from services.doctor.verdict import Status
from services.runtime.settings import ExplanationSettings
from tests.fake_openai import fake_openai, refusal
from tests.suite import Keys, Suite, lecture, running_suite

AT_REST = """
SELECT NOT EXISTS (SELECT FROM cache.generations WHERE status = 'generating')
   AND NOT EXISTS (SELECT FROM cache.requests WHERE state IN ('intent', 'waiting'))
   AND NOT EXISTS (SELECT FROM cache.outbox)
"""
QUICK = {"backoff_seconds": (0,), "backoff_jitter_seconds": 0, "poll_seconds": 0.05}


async def settled(admin_url: str) -> None:
    admin = await asyncpg.connect(admin_url)
    async with asyncio.timeout(60):
        while not await admin.fetchval(AT_REST):  # noqa: ASYNC110 - the services decide
            await asyncio.sleep(0.02)
    await admin.close()


async def live(suite: Suite) -> None:
    """What users do all day; a page of which the model refuses to speak among it."""
    content = lecture("Entropy is a measure of disorder.", "Heat flows from hot to cold.")
    users = [f"student-{n}" for n in range(6)]
    uploads = await asyncio.gather(*(suite.upload(user, content) for user in users))
    pdf_hash = uploads[0].file.pdf_hash
    await asyncio.gather(*(suite.explain(user, pdf_hash) for user in users))
    await asyncio.gather(*(suite.explain(user, pdf_hash, page=2) for user in users[:2]))
    for user in users:
        with pytest.raises(grpc.aio.AioRpcError):
            await suite.explain(user, pdf_hash, page=3)
    await suite.registry.DeleteFile(
        registry_pb2.DeleteFileRequest(
            owner=registry_pb2.Owner(user_id=users[0]), file_id=uploads[0].file.file_id
        ),
        metadata=suite.bearer(),
    )
    gone = await suite.upload("leaver", lecture("Nobody reads this."))
    await suite.registry.DeleteFile(
        registry_pb2.DeleteFileRequest(
            owner=registry_pb2.Owner(user_id="leaver"), file_id=gone.file.file_id
        ),
        metadata=suite.bearer(),
    )
    await suite.registry.CollectGarbage(
        registry_pb2.CollectGarbageRequest(grace=Duration(seconds=0)),
        metadata=suite.bearer("admin"),
    )


async def test_a_suite_that_has_worked_is_sound(
    admin_url: str,
    auditor_url: str,
    databases: Mapping[str, str],
    keys: Keys,
    tmp_path: Path,
) -> None:
    async with fake_openai() as model:
        explanation = ExplanationSettings(
            openai_api_key=SecretStr("secret"), openai_base_url=model.url
        )
        async with running_suite(
            databases, keys, tmp_path, explanation=explanation, cache=QUICK
        ) as suite:
            await live(suite)
            await settled(admin_url)
            model.always(refusal())
            failing = await suite.upload("unlucky", lecture("The model will not speak of this."))
            failed = await suite.explain("unlucky", failing.file.pdf_hash)
            assert failed.outcome == quota_pb2.OUTCOME_GENERATED
            await settled(admin_url)

    limits = configured_bounds(grace=timedelta(), since=None)
    assert await find_violations(auditor_url, bounds=limits) == {}
    connection = await asyncpg.connect(auditor_url)
    async with AsyncExitStack() as stack:
        store = await open_store((tmp_path / "objects").as_uri(), stack)
        checks = await examine_bytes(connection, store)
    seen = await connection.fetchrow(
        "SELECT (SELECT count(*) FROM cache.generations WHERE status = 'ready') AS ready,"
        " (SELECT count(*) FROM cache.generations WHERE status = 'failed') AS failed,"
        " (SELECT count(*) FROM quota.ledger_entries WHERE kind = 'refund') AS refunds,"
        " (SELECT count(*) FROM quota.ai_operations) AS operations,"
        " (SELECT count(*) FROM registry.canonical_documents) AS documents"
    )
    await connection.close()
    assert [check.status for check in checks] == [Status.SOUND, Status.SOUND]
    assert seen is not None
    assert seen["operations"] >= 3
    assert (seen["ready"], seen["failed"], seen["refunds"], seen["documents"]) == (2, 1, 1, 2)
