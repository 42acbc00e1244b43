"""A wire between two processes that can be slow, silent, broken, or lose what comes back.

It forwards bytes, so it stands on every edge alike: gRPC, Postgres, HTTP.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count

PIECE_BYTES = 65_536
# How often a dripping wire lets something through.
DRIP_SECONDS = 0.05
# A socket closed like this says RST at once, whatever is still unsent.
AT_ONCE = struct.pack("ii", 1, 0)


class Manner(StrEnum):
    """What a wire does with what it is given."""

    PASS = "pass"
    DELAY = "delay"  # everything arrives, later
    DRIP = "drip"  # so many bytes a second
    BLACK_HOLE = "black_hole"  # nothing arrives until it is over, and nobody is told
    RESET = "reset"  # every connection is broken, new ones too
    ANSWER_LOST = "answer_lost"  # what is asked arrives, the answer does not; then a reset


@dataclass(frozen=True, kw_only=True)
class Weather:
    """How a wire behaves for now."""

    manner: Manner = Manner.PASS
    seconds: float = 0.0
    bytes_per_second: int = 1000

    def __str__(self) -> str:
        match self.manner:
            case Manner.DELAY:
                return f"delay {self.seconds:g} s"
            case Manner.DRIP:
                return f"drip {self.bytes_per_second} B/s"
            case _:
                return self.manner.value


FAIR = Weather()


@dataclass(eq=False)
class _Connection:
    """Both ends of one connection, as far as they are open."""

    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    carrying: asyncio.Task[None] | None = None
    # Something that came back was thrown away: whatever follows would make no sense.
    maimed: bool = False

    def reset(self) -> None:
        for writer in self.writers:
            with contextlib.suppress(OSError):
                raw: socket.socket | None = writer.get_extra_info("socket")
                if raw is not None:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
            writer.transport.abort()
        if self.carrying is not None:
            self.carrying.cancel()


class FaultProxy:
    """Listens in front of one or several replicas and forwards to them in turn."""

    def __init__(self, targets: Sequence[str]) -> None:
        # Replicas may come later than the wire that leads to them.
        self.targets = list(targets)
        self._turns = count()
        self._connections: set[_Connection] = set()
        self._weather = FAIR
        self._changed = asyncio.Event()
        self._empty = asyncio.Event()
        self.address = ""

    @property
    def weather(self) -> Weather:
        return self._weather

    @property
    def connections(self) -> int:
        return len(self._connections)

    def set(self, weather: Weather) -> None:
        """From now on the wire behaves like this; who is being served notices at once."""
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()
        for connection in tuple(self._connections):
            if weather.manner is Manner.RESET or connection.maimed:
                connection.reset()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writers=[writer])
        connection.carrying = asyncio.create_task(self._carry(connection, reader, writer))
        self._connections.add(connection)
        # A task of its own: whoever cancels this one gets a traceback from asyncio's streams.
        await asyncio.wait({connection.carrying})
        if connection.carrying.cancelled() or connection.carrying.exception():
            connection.reset()
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def _carry(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._weather.manner is Manner.RESET:
            raise ConnectionResetError
        await self._while(Manner.BLACK_HOLE)
        from_server, to_server = await self._reach()
        connection.writers.append(to_server)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._pump(connection, reader, to_server, back=False))
            both.create_task(self._pump(connection, from_server, writer, back=True))

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The next replica that takes connections, as a balancer would find it."""
        turn = next(self._turns)
        for step in range(len(self.targets)):
            host, _, port = self.targets[(turn + step) % len(self.targets)].rpartition(":")
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, int(port))
        raise ConnectionRefusedError

    async def _pump(
        self,
        connection: _Connection,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        back: bool,
    ) -> None:
        """One direction. Pieces stand in line with the time they are due, so delays do not add."""
        line: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1000)
        delivery = asyncio.create_task(self._deliver(connection, line, target, back=back))
        try:
            with contextlib.suppress(ConnectionError):
                while piece := await source.read(PIECE_BYTES):
                    await line.put((self._due(), piece))
            await line.put((0.0, b""))
            await delivery
        finally:
            delivery.cancel()

    def _due(self) -> float:
        seconds = self._weather.seconds if self._weather.manner is Manner.DELAY else 0.0
        return asyncio.get_running_loop().time() + seconds

    async def _deliver(
        self,
        connection: _Connection,
        line: "asyncio.Queue[tuple[float, bytes]]",
        target: asyncio.StreamWriter,
        *,
        back: bool,
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                due, piece = await line.get()
                await self._wait_until(due)
                await self._while(Manner.BLACK_HOLE)
                if not piece:
                    break
                if back and self._weather.manner is Manner.ANSWER_LOST:
                    connection.maimed = True
                else:
                    await self._write(target, piece)
        target.close()

    async def _write(self, target: asyncio.StreamWriter, piece: bytes) -> None:
        while piece:
            weather = self._weather
            most = len(piece)
            if weather.manner is Manner.DRIP:
                most = max(1, int(weather.bytes_per_second * DRIP_SECONDS))
                await asyncio.sleep(DRIP_SECONDS)
            target.write(piece[:most])
            await target.drain()
            piece = piece[most:]

    async def _wait_until(self, due: float) -> None:
        """A delay that is lifted is over at once."""
        loop = asyncio.get_running_loop()
        while self._weather.manner is Manner.DELAY and loop.time() < due:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()

    async def _while(self, manner: Manner) -> None:
        while self._weather.manner is manner:
            await self._changed.wait()

    async def close(self) -> None:
        """Break every connection and wait until all of them are gone."""
        for connection in tuple(self._connections):
            connection.reset()
        while self._connections:
            self._empty.clear()
            await self._empty.wait()


@asynccontextmanager
async def fault_proxy(*targets: str) -> AsyncIterator[FaultProxy]:
    """A wire to these addresses until the block ends."""
    proxy = FaultProxy(targets)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
