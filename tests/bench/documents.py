"""Documents for benchmarks, uploaded as a gateway would."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pymupdf
from glossa.registry.v1 import registry_pb2
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from tests.bench.stand import Stand

UPLOADS_AT_ONCE = 16


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


async def hold_by_all(stand: Stand, users: int, content: bytes) -> str:
    """The hash of a document that so many users hold, `user-0` and so on."""
    registry = RegistryServiceStub(await stand.channel("registry"))
    bearer, gate = stand.bearer("gateway"), asyncio.Semaphore(UPLOADS_AT_ONCE)

    async def hold(user: int) -> str:
        async with gate:
            return await upload(registry, bearer, user=f"user-{user}", content=content)

    return (await asyncio.gather(*(hold(user) for user in range(users))))[0]
