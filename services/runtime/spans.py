"""OpenTelemetry as we use it: which spans there are and what is in them. Never users or pages."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from importlib.metadata import version

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# A collector that is away must not hold up a restart.
CLOSE_SECONDS = 3.0
HEADER = "traceparent"

_W3C = TraceContextTextMapPropagator()


class ServedCall:
    """The span of a call under way."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def end(self, code: str, reason: str) -> None:
        self._span.set_attribute("rpc.grpc.status_code", code)
        if reason:
            self._span.set_attribute("glossa.reason", reason)
        if code != "OK":
            self._span.set_status(Status(StatusCode.ERROR, reason or code))
        self._span.end()


class Spans:
    """Makes spans and sends them; where to, and how many, is for OTEL_* variables to say."""

    def __init__(self, service: str) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME") or f"glossa-{service}"
        resource = Resource.create({SERVICE_NAME: name, SERVICE_VERSION: version("glossa")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("glossa", version("glossa"))

    def close(self) -> None:
        """Send what is left, within reason."""
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(CLOSE_SECONDS)

    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get(HEADER, "")

    def served_call(self, method: str, parent: str) -> ServedCall:
        """It stays the present span to the end of the task that serves the call."""
        name = method.removeprefix("/")
        service, _, rpc = name.partition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": rpc}
        span = self._tracer.start_span(
            name, _context(parent), kind=SpanKind.SERVER, attributes=attributes
        )
        # Not detached: streams may be closed from elsewhere, and the context ends with its task.
        context.attach(trace.set_span_in_context(span))
        return ServedCall(span)

    @contextmanager
    def span(
        self,
        name: str,
        parent: str,
        attributes: Mapping[str, str | int],
        links: Sequence[str] = (),
    ) -> Iterator[None]:
        """What goes wrong in the block is told by the kind of its error alone."""
        with self._tracer.start_as_current_span(
            name,
            _context(parent) if parent else None,
            attributes=dict(attributes),
            links=[Link(_span_of(link)) for link in links],
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def past_span(self, name: str, parent: str, began_at: datetime, ended_at: datetime) -> None:
        span = self._tracer.start_span(name, _context(parent), start_time=_nanoseconds(began_at))
        span.end(_nanoseconds(ended_at))


def _context(parent: str) -> Context:
    """Where the span of another process goes on; what does not look like one is left out."""
    return _W3C.extract({HEADER: parent}, Context())


def _span_of(parent: str) -> trace.SpanContext:
    return trace.get_current_span(_context(parent)).get_span_context()


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1e9)
