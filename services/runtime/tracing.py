"""One trace from the first call to the model and back; off unless asked for, and then not imported.

OpenTelemetry itself is in `spans.py`. While tracing is off, what is here costs a comparison.
"""

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from services.runtime.spans import Spans

TRACEPARENT_HEADER = "traceparent"
# Who sets one of these wants traces.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

Attribute = str | int

_spans: "Spans | None" = None


class ServedCall(Protocol):
    """The span of a call that is being served."""

    def end(self, code: str, reason: str) -> None: ...


class TracingNotInstalled(Exception):
    """Traces are wanted, but what makes them is not there."""


def is_wanted(setting: bool | None, environment: Mapping[str, str]) -> bool:
    """What GLOSSA_TRACING says, otherwise what OpenTelemetry's own variables do."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if setting is not None:
        return setting
    if environment.get("OTEL_TRACES_EXPORTER", "otlp").lower() == "none":
        return False
    return any(environment.get(name) for name in ENDPOINTS)


@contextmanager
def tracing(service: str, setting: bool | None) -> Iterator[None]:
    """Make spans until the block ends, and send those that are left."""
    global _spans  # noqa: PLW0603 - one process is one service
    if not is_wanted(setting, os.environ):
        yield
        return
    if importlib.util.find_spec("opentelemetry") is None:
        raise TracingNotInstalled(
            "tracing is switched on but not installed: pip install 'glossa[tracing]',"
            " or set GLOSSA_TRACING=false"
        )
    # Imported here: nobody else needs it.
    from services.runtime.spans import Spans  # noqa: PLC0415

    _spans = Spans(service)
    try:
        yield
    finally:
        spans, _spans = _spans, None
        spans.close()


def traceparent() -> str:
    """The present span as W3C writes it, for whoever goes on with the work, or nothing."""
    return "" if _spans is None else _spans.traceparent()


def served_call(method: str, parent: str, *, may_begin: bool) -> ServedCall | None:
    """The span of a call that is being served: part of its caller's trace, or the first of one."""
    if _spans is None or not (parent or may_begin):
        return None
    return _spans.served_call(method, parent)


def span(name: str, *, parent: str = "", **attributes: Attribute) -> AbstractContextManager[object]:
    """A step of the work around the block, if the work is traced at all."""
    if _spans is None or not (parent or _spans.traceparent()):
        return nullcontext()
    return _spans.span(name, parent, attributes)


def batch(parents: Sequence[str]) -> AbstractContextManager[object]:
    """What is done for several at once: in the trace of the first, with links to the others."""
    if _spans is None or not (traced := [parent for parent in parents if parent]):
        return nullcontext()
    return _spans.span("batch", traced[0], {"glossa.items": len(parents)}, links=traced[1:])


def past_span(name: str, *, parent: str, began_at: datetime, ended_at: datetime) -> None:
    """Something that is over, such as a wait in a queue."""
    if _spans is not None and parent:
        _spans.past_span(name, parent, began_at, ended_at)
