"""What others do between two of our looks is no internal error, and counted exactly."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from glossa.registry.v1 import registry_pb2 as pb

from services.registry.domain import Note, Owner, ReceivedPdf, UploadHeader
from services.registry.errors import FileNotFound, ReferenceIdReused
from services.registry.reference_store import FIND_REFERENCES, ReferenceStore
from services.registry.store import ADD_CALLBACK, FIND_FILE, RegistryStore
from services.runtime.database import Database, open_database
from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.interleaving import Interrupted
from tests.registry.replicas import broken_invariants, replica
from tests.registry.test_upload import counts, hash_of
from tests.suite import Keys

URL = "https://gateway.example/told"


@pytest.fixture
async def own(databases: Mapping[str, str], keys: Keys, tmp_path: Path) -> AsyncIterator[Registry]:
    async with replica(databases, keys, tmp_path) as registry:
        yield registry


@pytest.fixture
async def database(databases: Mapping[str, str]) -> AsyncIterator[Database]:
    async with open_database(databases["registry"], application_name="test") as database:
        yield database


def owner_of(owner: pb.Owner) -> Owner:
    return Owner(user_id=owner.user_id)


def received(content: bytes) -> ReceivedPdf:
    return ReceivedPdf(pdf_hash=hash_of(content), size_bytes=len(content), total_pages=1)


async def test_a_reference_removed_while_another_is_added_makes_room_for_it(
    own: Registry, database: Database, someone: pb.Owner
) -> None:
    old, new = pdfs.unique_pdf("referred to"), pdfs.unique_pdf("to be referred to")
    for content in (old, new):
        await own.upload(content, someone)
    ref_id, references = uuid4(), ReferenceStore(database)
    await references.add_reference(
        owner_of(someone), hash_of(old), ref_type="lecture", ref_id=ref_id
    )
    between = Interrupted(
        database, FIND_REFERENCES, lambda: references.remove_references("lecture", [ref_id])
    )

    added = await ReferenceStore(between.as_database()).add_reference(
        owner_of(someone), hash_of(new), ref_type="lecture", ref_id=ref_id
    )

    assert between.happened
    assert added == (hash_of(new), True)
    assert [await counts(own, content) for content in (old, new)] == [(1, 1, 1), (2, 2, 1)]
    with pytest.raises(ReferenceIdReused):
        await references.add_reference(
            owner_of(someone), hash_of(old), ref_type="lecture", ref_id=ref_id
        )
    assert await broken_invariants(own) == []


async def test_a_file_deleted_while_it_is_found_again_is_made_anew(
    own: Registry, database: Database, someone: pb.Owner
) -> None:
    content, owner = pdfs.unique_pdf("deleted under our hands"), owner_of(someone)
    file_id = UUID((await own.upload(content, someone)).file.file_id)
    files = RegistryStore(database)
    between = Interrupted(database, ADD_CALLBACK, lambda: files.delete_files(owner, [file_id]))

    registered = await RegistryStore(between.as_database()).register(
        UploadHeader(owner=owner, callback_url=URL), received(content)
    )

    assert between.happened
    assert registered.note is Note.CREATED
    assert registered.holding.file.file_id != file_id
    assert registered.holding.file.callback is not None
    assert await counts(own, content) == (1, 1, 1)
    assert await broken_invariants(own) == []


@pytest.mark.parametrize(
    ("statement", "nth", "url"), [(ADD_CALLBACK, 1, URL), (FIND_FILE, 2, None)], ids=["told", "not"]
)
async def test_a_file_deleted_while_it_is_replaced_by_the_same_is_not_found(
    own: Registry, database: Database, someone: pb.Owner, statement: str, nth: int, url: str | None
) -> None:
    content, owner = pdfs.unique_pdf("replaced by itself"), owner_of(someone)
    file_id = UUID((await own.upload(content, someone)).file.file_id)
    files = RegistryStore(database)
    between = Interrupted(
        database, statement, lambda: files.delete_files(owner, [file_id]), nth=nth
    )

    header = UploadHeader(owner=owner, file_id=file_id, replace=True, callback_url=url)
    with pytest.raises(FileNotFound):
        await RegistryStore(between.as_database()).replace(header, received(content))

    assert between.happened
    assert await counts(own, content) == (0, 0, 0)
    assert await broken_invariants(own) == []
