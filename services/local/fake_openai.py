"""A loopback server that speaks enough of OpenAI's Responses API to succeed and to fail."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from services.local.fake_answers import JSON, Answer, Question, error, problem_with, usual

DRIP_SECONDS = 0.05
# Run by hand it serves for days, and a request may hold megabytes of pictures.
REQUESTS_KEPT = 1000


@dataclass(kw_only=True)
class Count:
    """What the provider counted: every call, and the tokens it bills."""

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def bill(self, answer: Answer) -> None:
        if answer.usage is not None:
            self.input_tokens += _tokens(answer.usage, "input_tokens")
            self.cached_tokens += _tokens(answer.usage, "input_tokens_details", "cached_tokens")
            self.output_tokens += _tokens(answer.usage, "output_tokens")


def _tokens(usage: object, *path: str) -> int:
    """A count as it was sent; nonsense, which a test may send on purpose, is nothing to bill."""
    found = usage
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, int) else 0


async def at_once(_: Question) -> None:
    """Nothing happens before the answer."""


class FakeOpenAI:
    """Answers every call by `answer`; while `gate` is closed, calls wait."""

    def __init__(self) -> None:
        self.url = ""
        self.count = Count()
        self.requests: deque[dict[str, Any]] = deque(maxlen=REQUESTS_KEPT)
        self.answer: Callable[[Question], Answer] = usual
        # Awaited before each answer, e.g. to look around or to be slow.
        self.before: Callable[[Question], Awaitable[None]] = at_once
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Condition()

    @property
    def calls(self) -> int:
        return self.count.calls

    @property
    def questions(self) -> list[Question]:
        return [Question(body=request) for request in self.requests]

    def always(self, answer: Answer) -> None:
        self.answer = lambda question: answer

    async def wait_for_calls(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: self.calls >= count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._reply(writer, *await _read_request(reader))
        except (ConnectionError, asyncio.IncompleteReadError, ValueError):
            pass
        finally:
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter, target: str, body: bytes) -> None:
        if target == "GET /count":
            document = json.dumps(asdict(self.count)).encode()
            await _send(writer, Answer(body=document, headers=JSON))
        elif target != "POST /v1/responses":
            await _send(writer, error(404, "not_found"))
        else:
            answer = await self._answer_to(Question(body=json.loads(body)))
            await _send(writer, answer)
            # What was not sent to the end is not billed.
            self.count.bill(answer)

    async def _answer_to(self, question: Question) -> Answer:
        async with self.arrived:
            self.count.calls += 1
            self.requests.append(dict(question.body))
            self.arrived.notify_all()
        await self.gate.wait()
        await self.before(question)
        problem = problem_with(question)
        return error(400, problem) if problem else self.answer(question)


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return first.rsplit(" ", 1)[0], body


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    if answer.hang:
        await asyncio.Event().wait()
    writer.write(_head(answer) + answer.body)
    await writer.drain()
    while answer.endless:
        writer.write(b" " * 65_536)
        await writer.drain()
    while answer.drips:
        await asyncio.sleep(DRIP_SECONDS)
        writer.write(b" ")
        await writer.drain()
    if answer.reset:
        writer.transport.abort()
        raise ConnectionResetError


def _head(answer: Answer) -> bytes:
    headers = dict(answer.headers)
    if answer.endless or answer.drips:
        headers["connection"] = "close"  # and no length: it lasts as long as it lasts
    else:
        headers["content-length"] = str(len(answer.body) + (1 if answer.reset else 0))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {answer.status} Fake\r\n{lines}\r\n".encode()


@asynccontextmanager
async def fake_openai(port: int = 0) -> AsyncIterator[FakeOpenAI]:
    """Serves on loopback until the block ends; port 0 is any free one."""
    fake = FakeOpenAI()
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await fake.serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            connections.discard(task)

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
