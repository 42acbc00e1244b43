"""Uploading: one file per owner and content, typed refusals, nothing left behind, counts exact."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest
from glossa.registry.v1 import registry_pb2 as pb

from tests.registry import pdfs
from tests.registry.client import Registry, chunks
from tests.registry.refusals import refused

COUNTS = """
SELECT
    document.reference_count,
    (SELECT count(*) FROM registry.canonical_document_refs AS r WHERE r.pdf_hash = $1),
    (SELECT count(*) FROM registry.files AS f WHERE f.content_hash = $1)
FROM registry.canonical_documents AS document WHERE document.pdf_hash = $1
"""


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def stored(registry: Registry, content: bytes) -> Path:
    pdf_hash = hash_of(content)
    return Path(registry.config.store_url) / pdf_hash[:2] / f"{pdf_hash}.pdf"


async def counts(registry: Registry, content: bytes) -> tuple[Any, ...]:
    """The count, the references and the files of a document."""
    rows = await registry.rows(COUNTS, hash_of(content))
    return rows[0] if rows else (0, 0, 0)


async def assert_nothing_stored(registry: Registry, content: bytes) -> None:
    assert await counts(registry, content) == (0, 0, 0)
    assert not stored(registry, content).exists()


async def test_a_new_document_is_hashed_counted_and_kept(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("new", pages=3)

    answer = await registry.upload(content, someone, filename="heaps.pdf")

    assert answer.note == pb.UPLOAD_NOTE_CREATED
    assert answer.file.pdf_hash == answer.document.pdf_hash == hash_of(content)
    assert (answer.file.filename, answer.file.size_bytes) == ("heaps.pdf", len(content))
    assert (answer.document.total_pages, answer.document.reference_count) == (3, 1)
    assert stored(registry, content).read_bytes() == content


async def test_the_same_bytes_again_give_the_same_file(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("again")
    first = await registry.upload(content, someone)

    second = await registry.upload(content, someone, filename="other name.pdf")

    assert second.note == pb.UPLOAD_NOTE_DEDUPLICATED
    assert second.file == first.file
    assert await counts(registry, content) == (1, 1, 1)


async def test_two_owners_share_one_document(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content = pdfs.unique_pdf("shared")
    first = await registry.upload(content, someone)

    second = await registry.upload(content, another)

    assert second.note == pb.UPLOAD_NOTE_CREATED
    assert second.file.file_id != first.file.file_id
    assert second.document.reference_count == 2


async def test_a_user_is_not_told_that_others_hold_a_document(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content = pdfs.unique_pdf("discreet")
    await registry.upload(content, another)

    answer = await registry.as_user(someone.user_id).upload(content, someone)

    assert answer.note == pb.UPLOAD_NOTE_CREATED
    assert answer.document.reference_count == 0
    # What was processed before it came, was processed for others.
    assert not answer.document.HasField("processed_at")
    assert (await registry.upload(content, someone)).document.HasField("processed_at")


async def test_a_visitor_and_a_user_of_the_same_name_are_two_owners(registry: Registry) -> None:
    content = pdfs.unique_pdf("namesakes")
    user = await registry.upload(content, pb.Owner(user_id="namesake"))
    visitor = await registry.upload(content, pb.Owner(visitor_session_id="namesake"))

    assert visitor.file.file_id != user.file.file_id
    again = await registry.upload(content, pb.Owner(visitor_session_id="namesake"))
    assert again.file.file_id == visitor.file.file_id
    assert await counts(registry, content) == (2, 2, 2)


async def test_force_makes_another_file_of_the_same_document(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("forced")
    first = await registry.upload(content, someone)

    forced = [await registry.upload(content, someone, force=True) for _ in range(2)]

    assert {answer.note for answer in forced} == {pb.UPLOAD_NOTE_CREATED}
    assert [answer.file.forced for answer in (first, *forced)] == [False, True, True]
    assert len({first.file.file_id, *(answer.file.file_id for answer in forced)}) == 3
    assert await counts(registry, content) == (3, 3, 3)
    again = await registry.upload(content, someone)
    assert again.file.file_id == first.file.file_id


async def test_a_file_id_of_the_callers_choice_may_be_repeated_for_the_same_upload(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("own id")
    file_id = str(uuid4())

    answers = [
        await registry.upload(content, someone, file_id=file_id, force=True) for _ in range(2)
    ]

    assert {answer.file.file_id for answer in answers} == {file_id}
    assert [a.note for a in answers] == [pb.UPLOAD_NOTE_CREATED, pb.UPLOAD_NOTE_DEDUPLICATED]
    assert await counts(registry, content) == (1, 1, 1)


async def test_a_file_id_cannot_name_two_files(
    registry: Registry, someone: pb.Owner, another: pb.Owner
) -> None:
    content, other_content = pdfs.unique_pdf("taken"), pdfs.unique_pdf("too late")
    file_id = (await registry.upload(content, someone)).file.file_id

    for late_content, owner in ((other_content, someone), (content, another)):
        with refused() as told:
            await registry.upload(late_content, owner, file_id=file_id)
        assert (told.code, told.reason) == ("ALREADY_EXISTS", "FILE_ID_REUSED")

    assert await counts(registry, content) == (1, 1, 1)
    assert await counts(registry, other_content) == (0, 0, 0)


async def test_one_file_id_for_many_documents_at_once_is_given_to_one(
    registry: Registry, someone: pb.Owner
) -> None:
    contents = [pdfs.unique_pdf(f"contended {number}") for number in range(8)]
    file_id = str(uuid4())

    answers = await asyncio.gather(
        *(registry.upload(content, someone, file_id=file_id) for content in contents),
        return_exceptions=True,
    )

    failed = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert {error.code() for error in failed} == {grpc.StatusCode.ALREADY_EXISTS}
    assert len(failed) == len(contents) - 1
    kept = [await counts(registry, content) for content in contents]
    assert sorted(kept) == [(0, 0, 0)] * 7 + [(1, 1, 1)]


async def test_twenty_simultaneous_uploads_by_one_owner_give_one_file(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("twenty")

    answers = await asyncio.gather(*(registry.upload(content, someone) for _ in range(20)))

    assert len({answer.file.file_id for answer in answers}) == 1
    assert [answer.note for answer in answers].count(pb.UPLOAD_NOTE_CREATED) == 1
    assert await counts(registry, content) == (1, 1, 1)


async def test_many_simultaneous_owners_are_all_counted(registry: Registry) -> None:
    content = pdfs.unique_pdf("many owners")
    owners = [pb.Owner(user_id=f"one-of-many-{number}") for number in range(20)]

    answers = await asyncio.gather(*(registry.upload(content, owner) for owner in owners))

    assert {answer.note for answer in answers} == {pb.UPLOAD_NOTE_CREATED}
    assert await counts(registry, content) == (20, 20, 20)


async def test_the_count_stays_exact_while_uploads_and_deletions_race(registry: Registry) -> None:
    content = pdfs.unique_pdf("races")
    owners = [pb.Owner(user_id=f"racer-{number}") for number in range(4)]

    async def come_and_go(owner: pb.Owner) -> None:
        for _ in range(5):
            answer = await registry.upload(content, owner)
            request = pb.DeleteFileRequest(owner=owner, file_id=answer.file.file_id)
            await asyncio.gather(
                registry.call("DeleteFile", request),
                registry.call("DeleteFile", request),
                registry.upload(content, owner),
                return_exceptions=True,
            )

    await asyncio.gather(*(come_and_go(owner) for owner in owners))

    count, references, files = await counts(registry, content)
    assert count == references == files <= len(owners)


async def test_the_hash_that_was_announced_must_match(
    registry: Registry, someone: pb.Owner
) -> None:
    content = pdfs.unique_pdf("announced")
    with refused() as told:
        await registry.upload(content, someone, expected_pdf_hash="0" * 64)
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", "HASH_MISMATCH")
    assert told.field == "header.expected_pdf_hash"
    await assert_nothing_stored(registry, content)

    answer = await registry.upload(content, someone, expected_pdf_hash=hash_of(content))
    assert answer.note == pb.UPLOAD_NOTE_CREATED


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "PDF_EMPTY"),
        (b"MZ this is a program", "NOT_A_PDF"),
        (pdfs.HTML, "PDF_UNREADABLE"),
        (pdfs.encrypted_pdf(user_password="secret", owner_password="o"), "PDF_ENCRYPTED"),
    ],
    ids=["empty", "program", "html", "encrypted"],
)
async def test_a_bad_pdf_is_refused_by_reason_and_not_stored(
    registry: Registry, someone: pb.Owner, content: bytes, reason: str
) -> None:
    with refused() as told:
        await registry.upload(content, someone)
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", reason)
    await assert_nothing_stored(registry, content)


async def test_a_file_that_is_too_large_is_refused_before_it_has_all_come(
    registry: Registry, someone: pb.Owner
) -> None:
    limit = registry.config.max_upload_bytes
    pieces = chunks(b"%PDF-1.7" + bytes(limit))
    refused_early = asyncio.Event()

    async def more_than_allowed() -> Any:
        header = pb.UploadDocumentRequest.Header(owner=someone)
        yield pb.UploadDocumentRequest(header=header)
        for piece in pieces:
            yield piece
        await refused_early.wait()  # the upload never ends by itself

    with refused() as told:
        await registry.stub.UploadDocument(more_than_allowed(), metadata=registry.metadata)
    refused_early.set()
    assert (told.code, told.reason) == ("RESOURCE_EXHAUSTED", "FILE_TOO_LARGE")
    assert told.metadata["limit_bytes"] == str(limit)


async def test_a_refused_upload_is_heard_out_so_that_the_refusal_is_heard(
    registry: Registry, someone: pb.Owner
) -> None:
    """A client cut off in the middle of a send may report the broken send instead of our answer.

    Whoever may not call at all is not heard out: tests/security/test_silence.py.
    """
    much_too_large = b"%PDF-1.7" + bytes(registry.config.max_upload_bytes + (16 << 20))
    sent_all = asyncio.Event()

    async def parts() -> Any:
        yield header(owner=someone)
        for piece in chunks(much_too_large):
            yield piece
        sent_all.set()

    with refused() as told:
        await registry.stub.UploadDocument(parts(), metadata=registry.metadata)

    assert (told.code, told.reason) == ("RESOURCE_EXHAUSTED", "FILE_TOO_LARGE")
    assert sent_all.is_set()


def header(**fields: Any) -> pb.UploadDocumentRequest:
    fields.setdefault("owner", pb.Owner(user_id="somebody"))
    return pb.UploadDocumentRequest(header=pb.UploadDocumentRequest.Header(**fields))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "header"),
        ([pb.UploadDocumentRequest(chunk=b"%PDF-")], "header"),
        ([pb.UploadDocumentRequest()], "header"),
        ([header(), header()], "chunk"),
        ([header(), pb.UploadDocumentRequest()], "chunk"),
        ([header(), pb.UploadDocumentRequest(chunk=bytes((1 << 20) + 1))], "chunk"),
        ([header(owner=None)], "header.owner"),
        ([header(owner=pb.Owner(user_id=""))], "header.owner.user_id"),
        ([header(owner=pb.Owner(user_id="a b"))], "header.owner.user_id"),
        (
            [header(owner=pb.Owner(visitor_session_id="x" * 129))],
            "header.owner.visitor_session_id",
        ),
        ([header(file_id="not-a-uuid")], "header.file_id"),
        ([header(expected_pdf_hash="ABC")], "header.expected_pdf_hash"),
        ([header(replace=True)], "header.file_id"),
        ([header(replace=True, force=True, file_id=str(uuid4()))], "header.replace"),
    ],
)
async def test_a_malformed_upload_names_the_field(
    registry: Registry, messages: list[pb.UploadDocumentRequest], field: str
) -> None:
    with refused() as told:
        await registry.send(messages)
    assert (told.code, told.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert told.field == field


async def test_an_uploader_that_falls_silent_is_let_go(registry: Registry) -> None:
    let_go = asyncio.Event()

    async def silent() -> Any:
        yield header()
        await let_go.wait()

    with refused() as told:
        await registry.stub.UploadDocument(silent(), metadata=registry.metadata)
    let_go.set()
    assert (told.code, told.field) == ("INVALID_ARGUMENT", "chunk")


async def test_an_uploader_of_empty_chunks_is_let_go_like_a_silent_one(registry: Registry) -> None:
    let_go = asyncio.Event()

    async def hollow() -> Any:
        yield header()
        while not let_go.is_set():
            yield pb.UploadDocumentRequest(chunk=b"")
            await asyncio.sleep(0.01)

    with refused() as told:
        await registry.stub.UploadDocument(hollow(), metadata=registry.metadata)
    let_go.set()
    assert (told.code, told.field) == ("INVALID_ARGUMENT", "chunk")


async def test_an_empty_chunk_among_others_does_no_harm(registry: Registry) -> None:
    content = pdfs.unique_pdf("with an empty chunk")
    pieces = [content[:100], b"", content[100:], b""]

    answer = await registry.send(
        [header(), *(pb.UploadDocumentRequest(chunk=piece) for piece in pieces)]
    )

    assert answer.file.pdf_hash == hash_of(content)


async def test_no_upload_leaves_a_file_in_the_spool_folder(
    registry: Registry, someone: pb.Owner
) -> None:
    arrived, never = asyncio.Event(), asyncio.Event()

    async def broken_off() -> Any:
        yield header(owner=someone)
        for piece in chunks(pdfs.unique_pdf("broken off") + bytes(2_000_000)):
            yield piece
        arrived.set()
        await never.wait()

    call = registry.stub.UploadDocument(broken_off(), metadata=registry.metadata)
    await arrived.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await registry.upload(pdfs.unique_pdf("whole"), someone)
    assert list(registry.config.spool_dir.iterdir()) == []


async def test_a_filename_is_kept_without_its_path_and_tricks(
    registry: Registry, someone: pb.Owner
) -> None:
    name = "../../etc/\u202enotes\x00\n.pdf"
    answer = await registry.upload(pdfs.unique_pdf("tricky name"), someone, filename=name)
    assert answer.file.filename == "notes.pdf"
