"""Work that takes time to compute, beside the event loop and one piece at a time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

# One thread: Python runs one at a time anyway, and heartbeats would wait for each of several.
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="thinking")


async def think(
    function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
) -> Result:
    """Runs a function without holding up the loop."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREAD, lambda: function(*args, **kwargs))
