"""A collector of traces: OTLP over gRPC, as a real one speaks it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True, kw_only=True)
class Span:
    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, str]
    error: str
    links: tuple[str, ...]


class Collector(TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._arrived = asyncio.Event()

    async def Export(self, request: ExportTraceServiceRequest, _: Any) -> Any:
        for resource in request.resource_spans:
            service = _attributes(resource.resource)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_span(service, span) for span in scope.spans]
        self._arrived.set()
        return ExportTraceServiceResponse()

    async def until(self, enough: Callable[[list[Span]], bool]) -> None:
        async with asyncio.timeout(60):
            while not enough(self.spans):
                self._arrived.clear()
                await self._arrived.wait()


def _span(service: str, span: Any) -> Span:
    return Span(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        attributes=_attributes(span),
        error=span.status.message,
        links=tuple(link.trace_id.hex() for link in span.links),
    )


def _attributes(of: Any) -> dict[str, str]:
    return {
        one.key: str(getattr(one.value, one.value.WhichOneof("value"))) for one in of.attributes
    }


@asynccontextmanager
async def running_collector() -> AsyncIterator[tuple[Collector, str]]:
    collector, server = Collector(), grpc.aio.server()
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)
