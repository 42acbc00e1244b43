"""Prometheus metrics every service exports, and the HTTP port they are scraped from."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from prometheus_client import Counter, Histogram, start_http_server

REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


@dataclass(frozen=True, kw_only=True)
class RequestMetrics:
    """Calls served, by method and gRPC code."""

    requests: Counter
    seconds: Histogram


@cache
def request_metrics(service: str) -> RequestMetrics:
    return RequestMetrics(
        requests=Counter(
            f"glossa_{service}_requests_total",
            "Calls served, by method and gRPC code.",
            ["method", "code"],
        ),
        seconds=Histogram(
            f"glossa_{service}_request_seconds",
            "How long unary calls took.",
            ["method"],
            buckets=REQUEST_BUCKETS,
        ),
    )


@contextmanager
def metrics_port(host: str, port: int) -> Iterator[int]:
    """Serve /metrics on its own HTTP port; port 0 takes a free one."""
    server, thread = start_http_server(port, addr=host)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
