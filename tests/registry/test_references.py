"""Whoever refers to a document is counted: files, other references, replaced content, bulk."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from glossa.registry.v1 import registry_pb2 as pb

from tests.registry import pdfs
from tests.registry.client import Registry
from tests.registry.refusals import refused
from tests.registry.test_upload import counts, hash_of


def reference(owner: pb.Owner, **fields: Any) -> pb.AddReferenceRequest:
    fields.setdefault("ref_type", "lecture")
    fields.setdefault("ref_id", str(uuid4()))
    return pb.AddReferenceRequest(owner=owner, **fields)


async def test_a_reference_is_added_and_removed_once_however_often_it_is_asked_for(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("referred to")
    await registry.upload(content, someone)
    add = reference(someone, pdf_hash=hash_of(content))

    added = await asyncio.gather(*(registry.call("AddReference", add) for _ in range(5)))
    assert [answer.added for answer in added].count(True) == 1
    assert {answer.pdf_hash for answer in added} == {hash_of(content)}
    assert await counts(registry, content) == (2, 2, 1)

    remove = pb.RemoveReferenceRequest(ref_type="lecture", ref_ids=[add.ref_id])
    removed = await asyncio.gather(*(registry.call("RemoveReference", remove) for _ in range(5)))
    assert sorted(len(answer.removed_ref_ids) for answer in removed) == [0, 0, 0, 0, 1]
    assert await counts(registry, content) == (1, 1, 1)


async def test_a_reference_keeps_a_document_but_lets_nobody_see_it(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("kept by a lecture")
    file_id = (await registry.upload(content, someone)).file.file_id
    await registry.call("AddReference", reference(someone, file_id=file_id))
    await registry.call("DeleteFile", pb.DeleteFileRequest(owner=someone, file_id=file_id))

    assert await counts(registry, content) == (1, 1, 0)
    with refused() as told:
        await registry.call(
            "GetDocument", pb.GetDocumentRequest(owner=someone, pdf_hash=hash_of(content))
        )
    assert told.reason == "FILE_NOT_FOUND"


async def test_a_reference_to_what_the_owner_does_not_hold_is_refused(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content = pdfs.unique_pdf("not theirs")
    file_id = (await registry.upload(content, another)).file.file_id
    for target in ({"pdf_hash": hash_of(content)}, {"file_id": file_id}, {"pdf_hash": "d" * 64}):
        with refused() as told:
            await registry.call("AddReference", reference(someone, **target))
        assert (told.code, told.reason) == ("NOT_FOUND", "FILE_NOT_FOUND")
    assert await counts(registry, content) == (1, 1, 1)


async def test_a_reference_cannot_refer_to_two_documents(
    registry: Registry, someone: pb.Owner
) -> None:
    contents = [pdfs.unique_pdf(f"two documents {number}") for number in range(2)]
    adds = [
        reference(someone, pdf_hash=(await registry.upload(content, someone)).file.pdf_hash)
        for content in contents
    ]
    adds[1].ref_id = adds[0].ref_id
    await registry.call("AddReference", adds[0])
    with refused() as told:
        await registry.call("AddReference", adds[1])
    assert (told.code, told.reason) == ("ALREADY_EXISTS", "REFERENCE_ID_REUSED")
    assert [await counts(registry, content) for content in contents] == [(2, 2, 1), (1, 1, 1)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ref_type": ""}, "ref_type"),
        ({"ref_type": "Lecture"}, "ref_type"),
        ({"ref_type": "file"}, "ref_type"),
        ({"ref_id": "7"}, "ref_id"),
    ],
)
async def test_a_malformed_reference_names_the_field(
    registry: Registry, someone: pb.Owner, fields: dict[str, str], field: str
) -> None:
    with refused() as told:
        await registry.call("AddReference", reference(someone, pdf_hash="a" * 64, **fields))
    assert (told.code, told.field) == ("INVALID_ARGUMENT", field)
    request = pb.RemoveReferenceRequest(
        ref_type=fields.get("ref_type", "lecture"), ref_ids=[fields.get("ref_id", str(uuid4()))]
    )
    with refused() as told:
        await registry.call("RemoveReference", request)
    assert told.field in (field, "ref_ids")


@pytest.mark.parametrize("number", [0, 1001])
async def test_none_or_too_many_ids_are_refused(
    registry: Registry, someone: pb.Owner, number: int
) -> None:
    ids = [str(uuid4()) for _ in range(number)]
    for rpc, request in (
        ("RemoveReference", pb.RemoveReferenceRequest(ref_type="lecture", ref_ids=ids)),
        ("BulkDeleteFiles", pb.BulkDeleteFilesRequest(owner=someone, file_ids=ids)),
    ):
        with refused() as told:
            await registry.call(rpc, request)
        assert (told.code, told.field[-3:]) == ("INVALID_ARGUMENT", "ids")


async def test_references_are_for_services(registry: Registry, someone: pb.Owner) -> None:
    user = registry.as_user(someone.user_id)
    with refused() as told:
        await user.call("AddReference", reference(someone, pdf_hash="a" * 64))
    assert told.code == "PERMISSION_DENIED"


async def test_many_files_are_deleted_at_once_and_others_are_passed_over(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    contents = [pdfs.unique_pdf(f"bulk {number}") for number in range(3)]
    mine = [(await registry.upload(content, someone)).file.file_id for content in contents]
    mine.append((await registry.upload(contents[0], someone, force=True)).file.file_id)
    foreign = (await registry.upload(contents[0], another)).file.file_id
    request = pb.BulkDeleteFilesRequest(
        owner=someone, file_ids=[*mine, mine[0], foreign, str(uuid4())]
    )

    answers = await asyncio.gather(*(registry.call("BulkDeleteFiles", request) for _ in range(3)))

    deleted = [file_id for answer in answers for file_id in answer.deleted_file_ids]
    assert sorted(deleted) == sorted(mine)
    assert [await counts(registry, content) for content in contents] == [
        (1, 1, 1),
        (0, 0, 0),
        (0, 0, 0),
    ]


async def test_replaced_content_moves_the_reference(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    old, new = pdfs.unique_pdf("old edition"), pdfs.unique_pdf("new edition", pages=2)
    await registry.upload(old, another)
    first = await registry.upload(old, someone)

    answer = await registry.upload(
        new, someone, file_id=first.file.file_id, replace=True, filename="new.pdf"
    )

    assert answer.note == pb.UPLOAD_NOTE_REPLACED
    assert (answer.file.file_id, answer.file.filename) == (first.file.file_id, "new.pdf")
    assert (answer.file.pdf_hash, answer.document.total_pages) == (hash_of(new), 2)
    assert answer.file.size_bytes == len(new)
    assert [await counts(registry, content) for content in (old, new)] == [(1, 1, 1), (1, 1, 1)]
    with refused() as told:
        await registry.call(
            "ResolvePage", pb.ResolvePageRequest(owner=someone, pdf_hash=hash_of(old), page=1)
        )
    assert told.reason == "FILE_NOT_FOUND"


async def test_replacing_by_the_same_bytes_changes_nothing(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("replaced by itself")
    first = await registry.upload(content, someone)
    again = await registry.upload(content, someone, file_id=first.file.file_id, replace=True)
    assert again.file.pdf_hash == first.file.pdf_hash
    assert await counts(registry, content) == (1, 1, 1)


async def test_a_file_replaced_by_what_its_owner_has_already_stays_beside_it(
    registry: Registry, someone: pb.Owner
) -> None:
    one, two = pdfs.unique_pdf("beside one"), pdfs.unique_pdf("beside two")
    files = [await registry.upload(content, someone) for content in (one, two)]
    await registry.upload(two, someone, file_id=files[0].file.file_id, replace=True)
    assert [await counts(registry, content) for content in (one, two)] == [(0, 0, 0), (2, 2, 2)]


async def test_only_an_owners_own_file_can_be_replaced(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content, other = pdfs.unique_pdf("mine"), pdfs.unique_pdf("intruder")
    file_id = (await registry.upload(content, someone)).file.file_id
    for owner, target in ((another, file_id), (someone, str(uuid4()))):
        with refused() as told:
            await registry.upload(other, owner, file_id=target, replace=True)
        assert (told.code, told.reason) == ("NOT_FOUND", "FILE_NOT_FOUND")
    assert await counts(registry, content) == (1, 1, 1)
    assert await counts(registry, other) == (0, 0, 0)


async def test_replacements_and_deletions_of_one_file_at_once_leave_exact_counts(
    registry: Registry, someone: pb.Owner
) -> None:
    contents = [pdfs.unique_pdf(f"contested edition {number}") for number in range(4)]
    for _ in range(5):
        file_id = (await registry.upload(contents[0], someone)).file.file_id
        delete = pb.BulkDeleteFilesRequest(owner=someone, file_ids=[file_id])
        await asyncio.gather(
            *(
                registry.upload(content, someone, file_id=file_id, replace=True)
                for content in contents * 2
            ),
            registry.call("BulkDeleteFiles", delete),
            return_exceptions=True,
        )
        for content in contents:
            count, references, files = await counts(registry, content)
            assert count == references == files <= 1


async def test_a_document_is_told_with_its_owners_files(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content = pdfs.unique_pdf("a document", pages=2)
    await registry.upload(content, another)
    files = [(await registry.upload(content, someone, force=force)).file for force in (False, True)]
    request = pb.GetDocumentRequest(owner=someone, pdf_hash=hash_of(content))

    answer = await registry.call("GetDocument", request)

    assert list(answer.files) == files
    assert (answer.document.total_pages, answer.document.reference_count) == (2, 3)
    assert answer.document.size_bytes == len(content)
    told = await registry.as_user(someone.user_id).call("GetDocument", request)
    assert told.document.reference_count == 0


async def test_files_are_listed_newest_first_in_pages(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    for owner in (another, someone):
        uploaded = [
            (await registry.upload(pdfs.unique_pdf(f"listed {owner} {n}"), owner)).file
            for n in range(5)
        ]
    seen: list[pb.File] = []
    sizes: list[int] = []
    token = ""
    while not sizes or token:
        request = pb.ListFilesRequest(owner=someone, page_size=2, page_token=token)
        page = await registry.call("ListFiles", request)
        seen += page.files
        sizes.append(len(page.files))
        token = page.next_page_token
    assert seen == uploaded[::-1]
    assert sizes == [2, 2, 1]
    everything = await registry.call("ListFiles", pb.ListFilesRequest(owner=someone))
    assert list(everything.files) == seen


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_size": -1}, "page_size"),
        ({"page_size": 1001}, "page_size"),
        ({"page_token": "nonsense"}, "page_token"),
        ({"page_token": "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5IHg="}, "page_token"),
        ({"page_token": "é"}, "page_token"),
    ],
)
async def test_a_malformed_list_names_the_field(
    registry: Registry, someone: pb.Owner, fields: dict[str, Any], field: str
) -> None:
    with refused() as told:
        await registry.call("ListFiles", pb.ListFilesRequest(owner=someone, **fields))
    assert (told.code, told.field) == ("INVALID_ARGUMENT", field)


async def test_an_owner_without_files_has_an_empty_list(
    registry: Registry, someone: pb.Owner
) -> None:
    answer = await registry.call("ListFiles", pb.ListFilesRequest(owner=someone))
    assert (list(answer.files), answer.next_page_token) == ([], "")


async def downloaded(registry: Registry, **request: Any) -> tuple[pb.Document, bytes]:
    call = registry.stub.DownloadDocument(
        pb.DownloadDocumentRequest(**request), metadata=registry.metadata
    )
    parts = [part async for part in call]
    return parts[0].document, b"".join(part.chunk for part in parts[1:])


async def test_a_document_comes_back_as_it_was_sent(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content = pdfs.unique_pdf("downloaded") + bytes(2_500_000)
    file_id = (await registry.upload(content, someone)).file.file_id
    for target in ({"file_id": file_id}, {"pdf_hash": hash_of(content)}):
        document, received = await downloaded(registry, owner=someone, **target)
        assert (document.pdf_hash, document.size_bytes) == (hash_of(content), len(content))
        assert received == content
        with refused() as told:
            await downloaded(registry, owner=another, **target)
        assert (told.code, told.reason) == ("NOT_FOUND", "FILE_NOT_FOUND")


async def test_many_pages_are_told_in_the_order_asked_for_and_a_broken_one_spoils_nothing(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.joined(pdfs.text_pdf("one"), pdfs.endless_pdf(), pdfs.text_pdf("two words"))
    await registry.upload(content, someone)
    request = pb.BatchGetPageMetadataRequest(
        owner=someone, pdf_hash=hash_of(content), pages=[3, 1, 2, 3]
    )
    for _ in range(2):  # found out, and from memory
        answer = await registry.call("BatchGetPageMetadata", request)
        assert (answer.pdf_hash, answer.total_pages) == (hash_of(content), 3)
        assert [(page.page, page.word_count, page.error_reason) for page in answer.pages] == [
            (3, 2, ""),
            (1, 1, ""),
            (2, 0, "PDF_TIMEOUT"),
            (3, 2, ""),
        ]
    single = await registry.call(
        "ResolvePage", pb.ResolvePageRequest(owner=someone, pdf_hash=hash_of(content), page=3)
    )
    assert answer.pages[0].fingerprint == single.fingerprint


@pytest.mark.parametrize(
    ("pages", "reason"),
    [
        ([], "INVALID_ARGUMENT"),
        ([0], "INVALID_ARGUMENT"),
        ([1] * 501, "INVALID_ARGUMENT"),
        ([1, 2], "PAGE_OUT_OF_RANGE"),
    ],
)
async def test_wrong_pages_are_refused(
    registry: Registry, someone: pb.Owner, pages: list[int], reason: str
) -> None:
    content = pdfs.unique_pdf("wrong pages")
    await registry.upload(content, someone)
    request = pb.BatchGetPageMetadataRequest(owner=someone, pdf_hash=hash_of(content), pages=pages)
    with refused() as told:
        await registry.call("BatchGetPageMetadata", request)
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", reason)
