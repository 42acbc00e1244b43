"""Row 9: uploading 300 MB, against a bare client-stream sink in the same run.

Bar: at least half the sink's speed, and the Registry's resident memory grows by 64 MB at most.
"""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import grpc
from glossa.registry.v1 import registry_pb2 as pb
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub

from tests.bench.memory import most_memory
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import open_stand
from tests.registry.pdfs import assembled

ROUNDS = 5
SIZE_BYTES = 299_000_000
CHUNK_BYTES = 1 << 20
LEAST_SPEED = 0.5
MOST_GROWTH_MB = 64
SINK = "--sink"
METHOD = "/bench.Sink/Upload"

Sending = Callable[[AsyncIterator[pb.UploadDocumentRequest]], Awaitable[pb.File]]
Upload = Callable[[AsyncIterator[pb.UploadDocumentRequest]], Awaitable[pb.UploadDocumentResponse]]


def large_pdf() -> bytes:
    """One page, and a stream of noise nobody looks at."""
    noise = os.urandom(1 << 20) * (SIZE_BYTES >> 20)
    return assembled(
        (
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] >>",
            b"<< /Length %d >>\nstream\n%s\nendstream" % (len(noise), noise),
        )
    )


def pieces(content: bytes) -> Iterator[bytes]:
    view = memoryview(content)
    return (bytes(view[at : at + CHUNK_BYTES]) for at in range(0, len(content), CHUNK_BYTES))


async def serve_sink() -> None:
    """What the wire allows: messages of the same kind, parsed, counted and forgotten."""

    async def upload(messages: AsyncIterator[pb.UploadDocumentRequest], _: object) -> pb.File:
        return pb.File(size_bytes=sum([len(message.chunk) async for message in messages]))

    method = grpc.stream_unary_rpc_method_handler(
        upload,
        request_deserializer=pb.UploadDocumentRequest.FromString,
        response_serializer=pb.File.SerializeToString,
    )
    server = grpc.aio.server()
    handlers = grpc.method_handlers_generic_handler("bench.Sink", {"Upload": method})
    server.add_generic_rpc_handlers((handlers,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


@asynccontextmanager
async def sink() -> AsyncIterator[Sending]:
    """The sink in a process of its own, as the Registry is."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.row_09_upload", SINK), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel.stream_unary(
                METHOD,
                request_serializer=pb.UploadDocumentRequest.SerializeToString,
                response_deserializer=pb.File.FromString,
            )
    finally:
        process.terminate()
        await process.wait()


async def into_sink(upload: Sending, content: bytes) -> float:
    async def parts() -> AsyncIterator[pb.UploadDocumentRequest]:
        for piece in pieces(content):
            yield pb.UploadDocumentRequest(chunk=piece)

    began = time.perf_counter()
    answer = await upload(parts())
    assert answer.size_bytes == len(content)
    return time.perf_counter() - began


async def into_registry(upload: Upload, chunks: Iterable[bytes]) -> float:
    async def parts() -> AsyncIterator[pb.UploadDocumentRequest]:
        header = pb.UploadDocumentRequest.Header(owner=pb.Owner(user_id="bench"))
        yield pb.UploadDocumentRequest(header=header)
        for chunk in chunks:
            yield pb.UploadDocumentRequest(chunk=chunk)

    began = time.perf_counter()
    await upload(parts())
    return time.perf_counter() - began


async def run() -> list[Figure]:
    sunk, taken, growths = [], [], []
    async with sink() as bare, open_stand() as stand:
        registry = await stand.start("registry")
        stub = RegistryServiceStub(await stand.channel("registry"))
        upload = partial(stub.UploadDocument, metadata=stand.bearer("gateway"))
        await into_registry(upload, [assembled(SMALL)])  # everything is loaded
        async with most_memory(registry.pid) as most:
            before = most[0]
            for _ in range(ROUNDS):
                content = large_pdf()
                sunk.append(await into_sink(bare, content))
                taken.append(await into_registry(upload, pieces(content)))
                growths.append((most[0] - before) / 1e6)
    return [
        Figure(
            row=9,
            what=f"upload of {SIZE_BYTES / 1e6:.0f} MB",
            ours=f"{SIZE_BYTES / statistics.median(taken) / 1e6:.0f} MB/s",
            reference=f"bare sink {SIZE_BYTES / statistics.median(sunk) / 1e6:,.0f} MB/s",
            value=median_ratio(sunk, taken),
            unit="x",
            bar=LEAST_SPEED,
            at_least=True,
        ),
        Figure(
            row=9,
            what=f"memory growth over {ROUNDS} uploads",
            ours=f"{max(growths):.0f} MB",
            reference="",
            value=max(growths),
            unit="MB",
            bar=MOST_GROWTH_MB,
            at_least=False,
        ),
    ]


SMALL = (
    b"<< /Type /Catalog /Pages 2 0 R >>",
    b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
    b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] >>",
)

if __name__ == "__main__":
    sys.exit(asyncio.run(serve_sink()) if SINK in sys.argv else standalone(run))
