"""Waiting for what happens in another task or process, without guessing how long it takes."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds; the test's time-out ends it otherwise."""
    while not condition():  # noqa: ASYNC110 - metrics and other services give no event to wait for
        await asyncio.sleep(0.01)
