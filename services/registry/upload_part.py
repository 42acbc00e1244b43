"""Messages of an upload as they come off the wire; the only place that reads protobuf by hand."""

from glossa.registry.v1 import registry_pb2 as pb

from services.runtime.errors import InvalidInput
from services.runtime.validation import require

UploadPart = pb.UploadDocumentRequest | memoryview

# Field 2, with a length: how a message that is nothing but a chunk begins.
CHUNK_TAG = pb.UploadDocumentRequest.CHUNK_FIELD_NUMBER << 3 | 2
LONGEST_LENGTH = 5


def read_upload_part(content: bytes) -> UploadPart:
    """A chunk as a view of the message it came in; anything else as protobuf reads it.

    Protobuf would copy a chunk twice, and all but one message of an upload are chunks.
    """
    if content and content[0] == CHUNK_TAG:
        length = 0
        for place in range(1, min(len(content), LONGEST_LENGTH + 1)):
            length |= (content[place] & 0x7F) << 7 * (place - 1)
            if content[place] < 0x80:
                # With something before or after the chunk it is protobuf's business again.
                if place + 1 + length == len(content):
                    return memoryview(content)[place + 1 :]
                break
    return pb.UploadDocumentRequest.FromString(content)


def header_of(first: UploadPart | None) -> pb.UploadDocumentRequest.Header:
    """What is said before the first byte."""
    if not isinstance(first, pb.UploadDocumentRequest) or not first.HasField("header"):
        raise InvalidInput("header must be the first message", field="header")
    return first.header


def is_empty(part: UploadPart) -> bool:
    """Whether it is a chunk of no bytes, as some clients end their uploads with."""
    return isinstance(part, memoryview) and not part


def chunk_of(part: UploadPart) -> bytes | memoryview:
    """The bytes in a message that must hold some."""
    if isinstance(part, memoryview):
        return part
    require(part.WhichOneof("part") == "chunk", "chunk", "must be set after the header")
    return part.chunk
