"""Prometheus metrics every service exports, and the HTTP port they are scraped from."""

import platform
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from itertools import product
from typing import TypeVar
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import (
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    make_wsgi_app,
)
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics import MetricWrapperBase

# A second series for each counter, saying when it was made: nobody asks.
disable_created_metrics()  # type: ignore[no-untyped-call]

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# How soon the HTTP port notices that it is to stop.
STOP_POLL_SECONDS = 0.05


# Codes that are there from the start, so that the very first failure is seen as a rise.
FIRST_CODES = ("OK", "INTERNAL", "UNAVAILABLE")

Metric = TypeVar("Metric", bound=MetricWrapperBase)


def from_zero(metric: Metric, *values: Iterable[str]) -> Metric:
    """Give every combination of label values its series now: a rise from nothing is no rise."""
    for combination in product(*values):
        metric.labels(*combination)
    return metric


class RequestMetrics:
    """Calls served, by method and gRPC code."""

    def __init__(self, service: str) -> None:
        self.requests = Counter(
            f"glossa_{service}_requests_total",
            "Calls served, by method and gRPC code.",
            ["method", "code"],
        )
        self.seconds = Histogram(
            f"glossa_{service}_request_seconds",
            "How long calls took, streams from their beginning to their end.",
            ["method"],
            buckets=REQUEST_BUCKETS,
        )

    def of_method(self, method: str) -> "MethodMetrics":
        return MethodMetrics(self, method.rpartition("/")[2])


class MethodMetrics:
    """Those of one method, looked up once: finding a series costs more than counting in it."""

    def __init__(self, metrics: RequestMetrics, name: str) -> None:
        self._requests = metrics.requests
        self._name = name
        self._by_code = {code: metrics.requests.labels(name, code) for code in FIRST_CODES}
        self._seconds = metrics.seconds.labels(name)

    def count(self, code: str, seconds: float) -> None:
        counter = self._by_code.get(code)
        if counter is None:
            counter = self._by_code[code] = self._requests.labels(self._name, code)
        counter.inc()
        self._seconds.observe(seconds)


@cache
def request_metrics(service: str) -> RequestMetrics:
    return RequestMetrics(service)


@cache
def build_info(service: str) -> Gauge:
    """Tells which version runs; the value is always 1."""
    gauge = Gauge(
        f"glossa_{service}_build_info", "Which version runs, and on what.", ["version", "python"]
    )
    gauge.labels(version("glossa"), platform.python_version()).set(1)
    return gauge


class _QuietHandler(WSGIRequestHandler):
    """A scrape every few seconds is not worth a log line."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def metrics_port(host: str, port: int) -> Iterator[int]:
    """Serve /metrics on its own HTTP port; port 0 takes a free one."""
    server = make_server(
        host, port, make_wsgi_app(), ThreadingWSGIServer, handler_class=_QuietHandler
    )
    thread = threading.Thread(target=server.serve_forever, args=(STOP_POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
