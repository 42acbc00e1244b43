"""What a connection pool tells: how much of it is used, and how long calls wait for it."""

from functools import cache

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from services.runtime.metrics import from_zero

ACQUIRE_BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2)


class PoolMetrics:
    """One pool; its connections are counted now and then, waiting is timed always."""

    def __init__(self, service: str, registry: CollectorRegistry) -> None:
        self.connections = from_zero(
            Gauge(
                f"glossa_{service}_pool_connections",
                "Connections to the database, by whether somebody uses them.",
                ["state"],
                registry=registry,
            ),
            ("used", "idle"),
        )
        self.limit = Gauge(
            f"glossa_{service}_pool_connections_limit",
            "How many connections there may be.",
            registry=registry,
        )
        self.waiting = Gauge(
            f"glossa_{service}_pool_waiting_calls",
            "Calls that wait for a connection.",
            registry=registry,
        )
        self.acquire_seconds = Histogram(
            f"glossa_{service}_pool_acquire_seconds",
            "How long calls waited for a connection.",
            buckets=ACQUIRE_BUCKETS,
            registry=registry,
        )
        self.failures = Counter(
            f"glossa_{service}_pool_acquire_failures_total",
            "Calls that got no connection, because none was free in time or the database was away.",
            registry=registry,
        )


@cache
def pool_metrics(service: str, *, exported: bool = True) -> PoolMetrics:
    # A process tells of its main pool alone: alerts and panels sum over names, by service.
    registry = REGISTRY if exported else CollectorRegistry()
    # Some tests have names that metrics cannot have.
    return PoolMetrics(service.replace("-", "_"), registry)
