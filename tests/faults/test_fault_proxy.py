"""The wire itself: each kind of weather does to bytes what its name says, and ends with it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar

import pytest

from tests.faults.fault_proxy import FAIR, FaultProxy, Manner, Weather, fault_proxy

LONG = 1000.0


class Echo:
    """A server that says everything again, and remembers what it heard."""

    def __init__(self, name: bytes = b"") -> None:
        self.name = name
        self.heard = b""
        self.something = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(1000):
                self.heard += piece
                self.something.set()
                writer.write(self.name or piece)
        writer.close()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()


class Caller:
    """One connection through the wire; all of them are closed when the test ends."""

    opened: ClassVar[list["Caller"]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, proxy: FaultProxy) -> "Caller":
        host, _, port = proxy.address.rpartition(":")
        caller = cls(*await asyncio.open_connection(host, int(port)))
        cls.opened.append(caller)
        return caller

    async def say(self, words: bytes) -> bytes:
        self.writer.write(words)
        return await self.reader.readexactly(len(words))

    async def is_broken(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    yield
    while Caller.opened:
        Caller.opened.pop().writer.close()


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[FaultProxy]:
    async with echo.listening() as address, fault_proxy(address) as proxy:
        yield proxy


async def nothing_comes(caller: Caller) -> "asyncio.Task[bytes]":
    """An answer is being waited for, and is not there though the loop has gone round often."""
    waiting = asyncio.create_task(caller.reader.readexactly(5))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    return waiting


async def test_in_fair_weather_everything_passes(proxy: FaultProxy) -> None:
    caller = await Caller.at(proxy)
    assert await caller.say(b"hello") == b"hello"
    large = b"x" * 1_000_000
    caller.writer.write(large)
    assert await caller.reader.readexactly(len(large)) == large


async def test_a_delay_holds_everything_up_and_ends_at_once_when_it_is_lifted(
    proxy: FaultProxy,
) -> None:
    caller = await Caller.at(proxy)
    proxy.set(Weather(manner=Manner.DELAY, seconds=LONG))
    caller.writer.write(b"hello")
    waiting = await nothing_comes(caller)
    proxy.set(FAIR)
    assert await waiting == b"hello"


async def test_a_short_delay_passes_by_itself_and_keeps_the_order(proxy: FaultProxy) -> None:
    caller = await Caller.at(proxy)
    proxy.set(Weather(manner=Manner.DELAY, seconds=0.05))
    before = asyncio.get_running_loop().time()
    for word in (b"a", b"b", b"c"):
        caller.writer.write(word)
        await caller.writer.drain()
    assert await caller.reader.readexactly(3) == b"abc"
    # Once there and once back; never sooner, however fast the machine.
    assert asyncio.get_running_loop().time() - before >= 0.1


async def test_a_dripping_wire_loses_nothing(proxy: FaultProxy) -> None:
    caller = await Caller.at(proxy)
    proxy.set(Weather(manner=Manner.DRIP, bytes_per_second=1000))
    before = asyncio.get_running_loop().time()
    words = bytes(range(200))
    assert await caller.say(words) == words
    assert asyncio.get_running_loop().time() - before >= 0.2


async def test_a_black_hole_says_nothing_and_gives_everything_back_when_it_ends(
    proxy: FaultProxy, echo: Echo
) -> None:
    known = await Caller.at(proxy)
    assert await known.say(b"first") == b"first"
    proxy.set(Weather(manner=Manner.BLACK_HOLE))
    new = await Caller.at(proxy)
    for caller in (known, new):
        caller.writer.write(b"hello")
    waiting = [await nothing_comes(known), await nothing_comes(new)]
    assert echo.heard == b"first"
    proxy.set(FAIR)
    assert await asyncio.gather(*waiting) == [b"hello", b"hello"]


async def test_a_reset_breaks_who_is_there_and_who_comes_until_it_ends(proxy: FaultProxy) -> None:
    known = await Caller.at(proxy)
    assert await known.say(b"hello") == b"hello"
    proxy.set(Weather(manner=Manner.RESET))
    assert await known.is_broken()
    assert await (await Caller.at(proxy)).is_broken()
    proxy.set(FAIR)
    assert await (await Caller.at(proxy)).say(b"hello") == b"hello"


async def test_a_lost_answer_was_asked_for_and_then_the_connection_breaks(
    proxy: FaultProxy, echo: Echo
) -> None:
    caller, idle = await Caller.at(proxy), await Caller.at(proxy)
    assert await idle.say(b"x") == b"x"
    echo.something.clear()
    proxy.set(Weather(manner=Manner.ANSWER_LOST))
    caller.writer.write(b"hello")
    await echo.something.wait()
    assert echo.heard == b"xhello"
    waiting = await nothing_comes(caller)
    proxy.set(FAIR)
    assert await waiting_is_broken(waiting)
    # Who asked nothing meanwhile has lost nothing.
    assert await idle.say(b"y") == b"y"


async def waiting_is_broken(waiting: "asyncio.Task[bytes]") -> bool:
    try:
        await waiting
    except (ConnectionError, asyncio.IncompleteReadError):
        return True
    return False


async def test_replicas_are_used_in_turn_and_one_that_is_away_is_passed_over() -> None:
    first, second = Echo(b"1"), Echo(b"2")
    async with first.listening() as one, second.listening() as two:
        async with fault_proxy(one, two) as proxy:
            answers = [await (await Caller.at(proxy)).say(b"?") for _ in range(4)]
        async with fault_proxy(one, "127.0.0.1:1") as proxy:
            left = [await (await Caller.at(proxy)).say(b"?") for _ in range(2)]
    assert answers == [b"1", b"2", b"1", b"2"]
    assert left == [b"1", b"1"]
