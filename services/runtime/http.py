"""An HTTP port with pages, in a thread of its own: no browser delays the service itself."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvicorn
from starlette.types import ASGIApp

# Connections at a time; whoever comes beyond that is told to come again (503).
MOST_CONNECTIONS = 200
MOST_HEADER_BYTES = 32 * 1024
KEEP_ALIVE_SECONDS = 15
STOP_SECONDS = 2

Result = TypeVar("Result")


class HomeLoop:
    """The loop of the service, for pages that run beside it: what belongs there runs there.

    gRPC and pools belong to the loop they were made in; pages only wait for what comes of it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))


@asynccontextmanager
async def http_port(host: str, port: int, app: ASGIApp) -> AsyncIterator[int]:
    """Serve until the block ends; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            # Nobody is believed who says to speak for another.
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            h11_max_incomplete_event_size=MOST_HEADER_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
    )
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listener])), name="http", daemon=True
    )
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        # Not blocking: pages under way may be waiting for this very loop.
        await asyncio.to_thread(thread.join)
        listener.close()
