"""Repeats a call to the Cache while it is away, for about as long as a lease lasts."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import structlog

from services.runtime.errors import DependencyDown

log = structlog.get_logger()

# Together a little less than a lease: later somebody else has the job anyway.
TRIES = 6
FIRST_DELAY = timedelta(milliseconds=250)

Answer = TypeVar("Answer")


async def persistently(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """The call must be fenced, so that a lost answer costs nothing."""
    delay = FIRST_DELAY
    for _ in range(TRIES - 1):
        try:
            return await call()
        except DependencyDown as error:
            log.warning("cache_asked_again", reason=error.reason)
        # Spread, so that a restarted Cache does not meet everybody at once.
        await asyncio.sleep(delay.total_seconds() * random.uniform(0.5, 1.5))  # noqa: S311
        delay *= 2
    return await call()
