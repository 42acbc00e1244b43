"""Whatever happens at once, references are counted exactly and bytes are where they belong.

Random interleavings on two replicas over one database: every look from outside, at any instant,
must find count and references in agreement; at the end, exactly the bytes somebody refers to.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
from glossa.registry.v1 import registry_pb2 as pb

from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.replicas import (
    broken_invariants,
    check_health,
    collect,
    kept_hashes,
    replica,
)
from tests.registry.test_backfill import ADD_UNHASHED
from tests.suite import Keys

STEPS = 30
PEOPLE = 6
CONTENTS = [pdfs.unique_pdf(f"counted {number}") for number in range(4)]
EXPECTED = {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS}
NEGATIVE = "SELECT 1 FROM registry.canonical_documents WHERE reference_count < 0"


@dataclass(kw_only=True)
class Person:
    """Somebody who does one thing after another; owners are shared by several."""

    replicas: Sequence[Registry]
    owner: pb.Owner
    chance: random.Random
    references: list[str] = field(default_factory=list)

    @property
    def registry(self) -> Registry:
        return self.chance.choice(self.replicas)

    async def act(self) -> None:
        acts = [self.upload] * 4 + [self.delete] * 3 + [self.replace] * 3
        acts += [self.delete_many, self.refer, self.let_go, self.collect, self.take_over]
        try:
            await self.chance.choice(acts)()
        except grpc.aio.AioRpcError as error:
            if error.code() not in EXPECTED:
                raise

    async def files(self) -> list[str]:
        answer = await self.registry.call("ListFiles", pb.ListFilesRequest(owner=self.owner))
        return [file.file_id for file in answer.files]

    async def a_file(self) -> str:
        return self.chance.choice(await self.files() or [str(uuid4())])

    async def upload(self) -> None:
        force = self.chance.random() < 0.3
        await self.registry.upload(self.chance.choice(CONTENTS), self.owner, force=force)

    async def delete(self) -> None:
        request = pb.DeleteFileRequest(owner=self.owner, file_id=await self.a_file())
        await self.registry.call("DeleteFile", request)

    async def replace(self) -> None:
        content, file_id = self.chance.choice(CONTENTS), await self.a_file()
        await self.registry.upload(content, self.owner, file_id=file_id, replace=True)

    async def delete_many(self) -> None:
        request = pb.BulkDeleteFilesRequest(
            owner=self.owner, file_ids=await self.files() or [str(uuid4())]
        )
        await self.registry.call("BulkDeleteFiles", request)

    async def refer(self) -> None:
        ref_id = str(uuid4())
        request = pb.AddReferenceRequest(
            owner=self.owner, file_id=await self.a_file(), ref_type="lecture", ref_id=ref_id
        )
        await self.registry.call("AddReference", request)
        self.references.append(ref_id)

    async def let_go(self) -> None:
        ref_ids = self.references or [str(uuid4())]
        request = pb.RemoveReferenceRequest(ref_type="lecture", ref_ids=ref_ids)
        await self.registry.call("RemoveReference", request)
        self.references.clear()

    async def collect(self) -> None:
        await collect(self.registry)

    async def take_over(self) -> None:
        """A file without a hash, hashed by its first use."""
        file_id, key = uuid4(), f"old/{uuid4()}.pdf"
        path = Path(self.registry.config.store_url) / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self.chance.choice(CONTENTS))
        await self.registry.rows(ADD_UNHASHED, file_id, self.owner.user_id, key)
        request = pb.GetFileRequest(owner=self.owner, file_id=str(file_id))
        try:
            await self.registry.call("GetFile", request)
        finally:
            path.unlink()


async def watch_over(registry: Registry, done: asyncio.Event) -> int:
    """Look from outside again and again; each look is one instant."""
    looks = 0
    while not done.is_set():
        assert await broken_invariants(registry) == []
        assert await registry.rows(NEGATIVE) == []
        looks += 1
    return looks


@pytest.mark.parametrize("seed", range(4))
async def test_counts_are_exact_at_every_instant_and_bytes_at_the_end(
    databases: Mapping[str, str], keys: Keys, tmp_path: Path, seed: int
) -> None:
    settings = {"database_pool_size": 8}
    async with (
        replica(databases, keys, tmp_path, **settings) as one,
        replica(databases, keys, tmp_path, **settings) as other,
    ):
        people = [
            Person(
                replicas=(one, other),
                owner=pb.Owner(user_id=f"owner-{number % 3}"),
                chance=random.Random(f"{seed} {number}"),
            )
            for number in range(PEOPLE)
        ]

        async def live(person: Person) -> None:
            for _ in range(STEPS):
                await person.act()

        done = asyncio.Event()
        watching = asyncio.ensure_future(watch_over(one, done))
        try:
            await asyncio.gather(*(live(person) for person in people))
        finally:
            done.set()
        assert await watching > 0

        held = await one.rows("SELECT DISTINCT pdf_hash FROM registry.canonical_document_refs")
        assert (await check_health(one)).findings_count == 0
        await collect(other)
        assert kept_hashes(one) == {pdf_hash for (pdf_hash,) in held}
        rows = await one.rows("SELECT pdf_hash FROM registry.canonical_documents")
        assert {pdf_hash for (pdf_hash,) in rows} == {pdf_hash for (pdf_hash,) in held}
