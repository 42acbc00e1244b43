"""A wire between two services that a test can cut and mend."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress


class Proxy:
    """A wire between worker and Cache that the test can cut."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self.address = ""
        self.connections = 0
        # While it is down, nobody gets through.
        self.down = False
        # What comes from behind it arrives nowhere.
        self.swallow = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        self.connections += 1
        upstream, onward = await asyncio.open_connection(self._host, int(self._port))
        self._writers |= {writer, onward}
        await asyncio.gather(
            _pump(reader, onward), _pump(upstream, writer, swallow=lambda: self.swallow)
        )

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    swallow: Callable[[], bool] = lambda: False,
) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(65_536):
            if not swallow():
                writer.write(chunk)
                await writer.drain()
    writer.close()


@asynccontextmanager
async def proxied(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
