"""Documents for benchmarks, uploaded as a gateway would."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pymupdf
from glossa.registry.v1 import registry_pb2
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub


def lecture(pages: int) -> bytes:
    document: Any = pymupdf.open()  # type: ignore[no-untyped-call]
    for number in range(1, pages + 1):
        document.new_page().insert_text((72, 72), f"Page {number} is about entropy.")
    content: bytes = document.tobytes()
    return content


async def upload(
    registry: RegistryServiceStub, bearer: grpc.aio.Metadata, *, user: str, content: bytes
) -> str:
    """The hash of the document, which this user holds from now on."""

    async def parts() -> AsyncIterator[registry_pb2.UploadDocumentRequest]:
        owner = registry_pb2.Owner(user_id=user)
        header = registry_pb2.UploadDocumentRequest.Header(owner=owner, filename="lecture.pdf")
        yield registry_pb2.UploadDocumentRequest(header=header)
        for start in range(0, len(content), 65536):
            yield registry_pb2.UploadDocumentRequest(chunk=content[start : start + 65536])

    response = await registry.UploadDocument(parts(), metadata=bearer)
    return response.file.pdf_hash
