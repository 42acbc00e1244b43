"""The upload stream and the gate behind it: parts in any order, and real PDFs with wounds."""

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from glossa.registry.v1 import registry_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.memory import resident_bytes
from tests.registry import pdfs
from tests.security import hostile_messages
from tests.security.conftest import Fortress
from tests.security.rpcs import RPCS, call
from tests.security.test_fuzz import MOST_GROWTH_BYTES, check, fuzzed, logs, pid_of
from tests.suite import metadata

UPLOAD = RPCS["UploadDocument"]
# Real files of many writers, where the house has them beside the repository.
SHELF = Path(__file__).resolve().parents[3] / "shared" / "pdfs"
LARGEST_SEED = 100_000
WOUNDED = int(os.environ.get("GLOSSA_FUZZ_EXAMPLES", "10")) * 6
WORDS = [b"/Count", b"/Kids", b"/Length", b"/Filter", b"/MediaBox", b"obj", b"xref", b"stream"]
SPLINTERS = [
    b"-1",
    b"99999999999",
    b"0 0 R",
    b"/FlateDecode /FlateDecode",
    b"[[[[[[[[",
    b"<<" * 200,
    b"\0" * 64,
    b"%%EOF",
    b"<< /S /JavaScript /JS (app.alert(1)) >>",
]


def _header(owner: str = "alice") -> bytes:
    header = pb.UploadDocumentRequest.Header(owner=pb.Owner(user_id=owner), filename="a.pdf")
    return pb.UploadDocumentRequest(header=header).SerializeToString()


def _chunk(content: bytes) -> bytes:
    return pb.UploadDocumentRequest(chunk=content).SerializeToString()


PDF = pdfs.unique_pdf("parts in any order")
parts = st.sampled_from(
    [
        _header(),
        _header(),
        _chunk(PDF),
        _chunk(PDF[:200]),
        _chunk(PDF[200:]),
        _chunk(b""),
        _chunk(b"z" * (1 << 20)),
        _chunk(b"z" * ((1 << 20) + 1)),
        _chunk(b"z" * 3_500_000),
        b"",
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x12\x05abc",
    ]
) | hostile_messages.wire(UPLOAD.method.input_type)


@fuzzed
@given(sent=st.lists(parts, max_size=6))
async def test_parts_in_any_order_are_answered_in_type(
    fortress: Fortress, sent: list[bytes]
) -> None:
    told = await call(fortress.suite, UPLOAD, *sent, metadata=fortress.suite.bearer())
    check(UPLOAD, told)


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        ((), b"header"),
        ((_chunk(PDF), _header()), b"header"),
        ((_header(), _header(), _chunk(PDF)), b"chunk"),
        ((_header(), _chunk(b"z" * ((1 << 20) + 1))), b"chunk"),
        ((b"", _header(), _chunk(PDF)), b"header"),
    ],
    ids=["nothing", "no header", "header twice", "giant chunk", "empty part"],
)
async def test_a_part_in_the_wrong_place_is_told_by_its_name(
    fortress: Fortress, sent: tuple[bytes, ...], field: bytes
) -> None:
    told = await call(fortress.suite, UPLOAD, *sent, metadata=fortress.suite.bearer())
    assert told.code is grpc.StatusCode.INVALID_ARGUMENT
    assert field in told.details


async def test_an_upload_that_is_cut_off_leaves_nothing_behind(fortress: Fortress) -> None:
    suite = fortress.suite
    content = pdfs.unique_pdf("cut off in the middle")

    async def broken() -> AsyncIterator[pb.UploadDocumentRequest]:
        yield pb.UploadDocumentRequest.FromString(_header("eve"))
        yield pb.UploadDocumentRequest(chunk=content[: len(content) // 2])
        running.cancel()
        yield pb.UploadDocumentRequest(chunk=content[len(content) // 2 :])

    for _ in range(20):
        running = suite.registry.UploadDocument(broken(), metadata=suite.bearer())
        assert await running.code() == grpc.StatusCode.CANCELLED
    request = pb.ListFilesRequest(owner=pb.Owner(user_id="eve"))

    listed = await suite.registry.ListFiles(request, metadata=suite.bearer())

    assert not listed.files


def seeds() -> list[bytes]:
    """PDFs to wound: our own, and real ones where there are any."""
    shelf = sorted(SHELF.glob("*.pdf")) if SHELF.is_dir() else []
    real = [path.read_bytes() for path in shelf if path.stat().st_size <= LARGEST_SEED]
    return [
        pdfs.unique_pdf("seed", pages=3),
        pdfs.picture_pdf("A picture", pdfs.picture(1)),
        pdfs.scanned_pdf(),
        pdfs.inline_image_pdf(),
        pdfs.encrypted_pdf(user_password="", owner_password="o"),
        *real,
    ]


def wounded(content: bytes, dice: random.Random) -> bytes:
    """A few wounds: bytes turned, pieces cut, doubled or exchanged, numbers made absurd."""
    body = bytearray(content)
    for _ in range(dice.choice([1, 1, 2, 5, 20])):
        place, length = dice.randrange(len(body)), dice.choice([1, 4, 64, 1024])
        kind = dice.randrange(6)
        if kind == 0:
            body[place] ^= 1 << dice.randrange(8)
        elif kind == 1:
            del body[place : place + length]
        elif kind == 2:
            body[place:place] = body[place : place + length]
        elif kind == 3:
            body[place : place + length] = dice.randbytes(length)
        elif kind == 4:
            body[place:place] = dice.choice(SPLINTERS)
        elif (found := body.find(dice.choice(WORDS), place)) >= 0:
            body[found + 7 : found + 9] = dice.choice(SPLINTERS)
        if len(body) < 2:
            break
    return bytes(body[: len(body) // 2] if dice.random() < 0.1 else body)


async def test_wounded_pdfs_are_read_or_refused_by_reason(fortress: Fortress) -> None:
    """Through the front door, and what got in is looked at as the services look at it."""
    suite, dice = fortress.suite, random.Random(2026)
    shelf = seeds()
    before, registry = len(logs(fortress)), pid_of(fortress, "registry")
    memory, outcomes = resident_bytes(registry), set()
    for number in range(WOUNDED):
        content = wounded(shelf[number % len(shelf)], dice)
        pieces = [_chunk(content[at : at + 65536]) for at in range(0, len(content), 65536)]
        uploaded = await call(suite, UPLOAD, _header("eve"), *pieces, metadata=suite.bearer())
        check(UPLOAD, uploaded)
        outcomes.add(uploaded.code)
        if uploaded.code is not grpc.StatusCode.OK:
            continue
        document = pb.UploadDocumentResponse.FromString(uploaded.answers[0]).document
        resolve = pb.ResolvePageRequest(
            owner=pb.Owner(user_id="eve"), pdf_hash=document.pdf_hash, page=1
        )
        read = pb.GetPageContentRequest(
            pdf_hash=document.pdf_hash, page=1, include_images=True, include_render=True
        )
        worker = metadata(suite.keys.token("worker"))
        for name, request, token in (
            ("ResolvePage", resolve, suite.bearer()),
            ("GetPageContent", read, worker),
        ):
            rpc = RPCS[name]
            check(rpc, await call(suite, rpc, request.SerializeToString(), metadata=token))

    assert outcomes == {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT}
    assert "Traceback" not in logs(fortress)[before:]
    assert resident_bytes(registry) - memory < MOST_GROWTH_BYTES
