"""Structured logs: one event a line, JSON for machines, colours for a terminal."""

import logging
import sys
from typing import Any

import structlog

from services.runtime import request


def configure_logging(service: str, *, level: str = "INFO") -> None:
    """Route every log of this process through structlog, to standard output."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _add_request_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _renderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    # Libraries speak only when something is wrong; their debug output may hold page text or keys.
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, force=True)


def _renderer() -> structlog.typing.Processor:
    if sys.stdout.isatty():
        # Plain: the pretty traceback prints local variables, which hold page text and tokens.
        return structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    return structlog.processors.JSONRenderer()


def _add_request_id(
    _logger: Any, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    call = request.request_id.get()
    if call:
        event.setdefault("request", call)
    return event
