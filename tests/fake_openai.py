"""A loopback server that speaks enough of OpenAI's Responses API to succeed and to fail."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

NOTES = {
    "stickers": [
        {
            "kind": "summary",
            "title": "What this page says",
            "body_markdown": "It introduces its subject.",
            "quote": "",
        }
    ]
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One HTTP answer; `hang` never sends it, `reset` breaks the connection in the middle."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    reset: bool = False
    endless: bool = False


def response(text: str, **changes: Any) -> dict[str, Any]:
    """A completed response as the API sends it, with `text` as its output."""
    content = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [content],
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "model": "gpt-4.1-mini",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 900,
            "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 0},
            "output_tokens": 80,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 980,
        },
        **changes,
    }


def ok(document: object) -> Answer:
    return Answer(body=json.dumps(document).encode(), headers={"content-type": "application/json"})


def notes(*stickers: dict[str, str]) -> Answer:
    return ok(response(json.dumps({"stickers": list(stickers)} if stickers else NOTES)))


def refusal() -> Answer:
    document = response("")
    document["output"][0]["content"] = [{"type": "refusal", "refusal": "I cannot help with that."}]
    return ok(document)


def truncated() -> Answer:
    changes = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return ok(response('{"stickers": [{"kind": "summ', **changes))


def error(status: int, code: str | None = None, **headers: str) -> Answer:
    body = {"error": {"message": "no", "type": "error", "param": None, "code": code}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        status=status,
        body=json.dumps(body).encode(),
        headers={"content-type": "application/json", **named},
    )


class FakeOpenAI:
    """Answers every call by `answer`; while `gate` is closed, calls wait."""

    def __init__(self) -> None:
        self.url = ""
        self.calls = 0
        self.requests: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], Answer] = lambda request: notes()
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Condition()

    def always(self, answer: Answer) -> None:
        self.answer = lambda request: answer

    async def wait_for_calls(self, count: int) -> None:
        async with self.arrived:
            await self.arrived.wait_for(lambda: self.calls >= count)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                await self._reply(writer, *request)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _reply(self, writer: asyncio.StreamWriter, target: str, body: bytes) -> None:
        if target != "POST /v1/responses":
            return await _send(writer, error(404, "not_found"))
        request = json.loads(body)
        async with self.arrived:
            self.calls += 1
            self.requests.append(request)
            self.arrived.notify_all()
        await self.gate.wait()
        return await _send(writer, self.answer(request))


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return first.rsplit(" ", 1)[0], body


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    if answer.hang:
        await asyncio.Event().wait()
    length = len(answer.body) + (10**12 if answer.endless or answer.reset else 0)
    headers = {**answer.headers, "content-length": str(length)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {answer.status} Fake\r\n{lines}\r\n".encode() + answer.body)
    await writer.drain()
    while answer.endless:
        writer.write(b" " * 65_536)
        await writer.drain()
    if answer.reset:
        writer.transport.abort()


@asynccontextmanager
async def fake_openai(port: int = 0) -> AsyncIterator[FakeOpenAI]:
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


async def main() -> None:
    """Serves until killed; prints its base URL first, then a line for each call."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    async with fake_openai(parser.parse_args().port) as fake:
        print(fake.url, flush=True)
        count = 0
        while True:
            count += 1
            await fake.wait_for_calls(count)
            print(f"call {count}", flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(0)
