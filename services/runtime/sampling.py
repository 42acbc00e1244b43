"""Gauges about the database: looked at now and then, never by a scrape and never by a request."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache

from prometheus_client import Counter

from services.runtime.periodic import periodic

LOOK_EVERY = timedelta(seconds=10)


@cache
def failed_looks(service: str) -> Counter:
    return Counter(
        f"glossa_{service}_failed_looks_total",
        "Looks at the database for gauges that failed; the gauges tell what was seen last.",
    )


@asynccontextmanager
async def sampling(
    service: str, look: Callable[[], Awaitable[None]], *, every: timedelta = LOOK_EVERY
) -> AsyncIterator[None]:
    """Look at once and then again and again, until the block ends."""
    failures = failed_looks(service)

    async def look_once() -> None:
        try:
            await look()
        except Exception:
            failures.inc()
            raise

    async with periodic(f"{service}_gauges", every=every, run_once=look_once):
        yield
