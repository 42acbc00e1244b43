"""Messages read by hand: whatever they hold, they mean what protobuf says they mean."""

import pytest
from glossa.registry.v1 import registry_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from services.registry.upload_part import chunk_of, read_upload_part

HEADER = pb.UploadDocumentRequest(header=pb.UploadDocumentRequest.Header(filename="a.pdf"))
EMPTY, SHORT, LONG = (
    pb.UploadDocumentRequest(chunk=bytes(length)).SerializeToString() for length in (0, 127, 300)
)


def meant(content: bytes) -> pb.UploadDocumentRequest | None:
    try:
        return pb.UploadDocumentRequest.FromString(content)
    except DecodeError:
        return None


@given(content=st.binary(max_size=40) | st.binary(max_size=40).map(lambda rest: b"\x12" + rest))
@example(content=b"")
@example(content=b"\x12")
@example(content=EMPTY)
@example(content=SHORT)
@example(content=LONG)
@example(content=LONG[:-1])  # cut short
@example(content=LONG + b"\x00")  # and something after it
@example(content=SHORT + LONG)  # the last of two chunks is meant
@example(content=LONG + HEADER.SerializeToString())
@example(content=HEADER.SerializeToString())
@example(content=b"\x12\x83\x80\x80\x80\x00abc")  # a length in more bytes than it needs
@example(content=b"\x12\x83\x80\x80\x80\x80\x80\x80\x80\x80\x00abc")
@example(content=b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01abc")
def test_a_message_means_what_protobuf_says(content: bytes) -> None:
    expected = meant(content)
    if expected is None:
        with pytest.raises(DecodeError):
            read_upload_part(content)
        return
    part = read_upload_part(content)
    if isinstance(part, memoryview):
        assert expected.WhichOneof("part") == "chunk"
        assert bytes(chunk_of(part)) == expected.chunk
    else:
        assert part == expected


def test_a_chunk_is_not_copied() -> None:
    assert isinstance(part := read_upload_part(LONG), memoryview)
    assert part.obj is LONG
