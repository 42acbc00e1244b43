"""A load generator that costs next to nothing: HTTP/2 frames made beforehand, answers counted.

`h2load` sends one body over and over, so it cannot be a thousand users with an id for each request;
this can, at a comparable cost. It runs in a process of its own. Every answer must end with
`grpc-status: 0`, which a server without a header table to refer to writes out in full.
"""

import json
import selectors
import socket
import statistics
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, RST_STREAM = 0, 1, 4, 6, 7, 8, 3
END_STREAM, END_HEADERS, ACK = 1, 4, 1
LARGE_WINDOW = 2**31 - 1 - 65_535
STATUS_OK = b"\x0bgrpc-status\x010"


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to send: the messages of a file, one after another, so many at a time."""

    port: int
    method: str
    token: str
    messages: Path
    connections: int
    in_flight: int


def write_messages(path: Path, messages: Sequence[bytes]) -> None:
    with path.open("wb") as file:
        for message in messages:
            file.write(struct.pack(">I", len(message)) + message)


def read_messages(path: Path) -> Iterator[bytes]:
    content = memoryview(path.read_bytes())
    at = 0
    while at < len(content):
        (size,) = struct.unpack_from(">I", content, at)
        yield bytes(content[at + 4 : at + 4 + size])
        at += 4 + size


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def header_block(order: Order) -> bytes:
    """Every header written out, none remembered: the same bytes serve every request."""
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", order.method),
        (":authority", f"127.0.0.1:{order.port}"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        ("authorization", f"Bearer {order.token}"),
    ]
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in headers)


def _string(text: str) -> bytes:
    data, size = text.encode(), len(text.encode())
    if size < 127:
        return bytes([size]) + data
    rest, length = size - 127, bytearray([127])
    while rest >= 128:
        length.append(rest % 128 + 128)
        rest //= 128
    return bytes([*length, rest]) + data


class Connection:
    """One connection, with so many requests under way."""

    def __init__(self, order: Order, bodies: Iterator[bytes], latencies: list[float]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", order.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._headers = header_block(order)
        self._bodies = bodies
        self._latencies = latencies
        self._stream = 1
        self._unread = b""
        self._begun: dict[int, float] = {}
        self.failed = 0
        # No header table, so that statuses come in full; windows that never close.
        settings = struct.pack(">HIHI", 1, 0, 4, 2**31 - 1)
        self._out = [
            PREFACE,
            frame(SETTINGS, 0, 0, settings),
            frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", LARGE_WINDOW)),
        ]
        for _ in range(order.in_flight // order.connections):
            self._ask()
        self._flush()

    @property
    def is_done(self) -> bool:
        return not self._begun

    def _ask(self) -> None:
        body = next(self._bodies, None)
        if body is None:
            return
        stream, self._stream = self._stream, self._stream + 2
        self._begun[stream] = time.perf_counter()
        message = b"\0" + struct.pack(">I", len(body)) + body
        self._out.append(frame(HEADERS, END_HEADERS, stream, self._headers))
        self._out.append(frame(DATA, END_STREAM, stream, message))

    def _flush(self) -> None:
        self.socket.sendall(b"".join(self._out))
        self._out.clear()

    def receive(self) -> None:
        """Count what has come, and send as many again."""
        chunk = self.socket.recv(1 << 20)
        if not chunk:
            sys.exit("the server closed the connection")
        content = self._unread + chunk
        at, end = 0, len(content)
        while end - at >= 9:
            word, flags, stream = struct.unpack_from(">IBI", content, at)
            size, kind = word >> 8, word & 255
            if end - at < 9 + size:
                break
            payload = content[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == HEADERS and flags & END_STREAM:
                self._ended(stream, ok=STATUS_OK in payload)
            elif kind in (RST_STREAM, GOAWAY):
                self._ended(stream, ok=False)
            elif kind in (SETTINGS, PING) and not flags & ACK:
                self._out.append(frame(kind, ACK, 0, payload if kind == PING else b""))
        self._unread = content[at:]
        if self._out:
            self._flush()

    def _ended(self, stream: int, *, ok: bool) -> None:
        self._latencies.append(time.perf_counter() - self._begun.pop(stream))
        self.failed += not ok
        self._ask()


def run(order: Order) -> dict[str, float]:
    bodies = list(read_messages(order.messages))
    waiting, latencies = iter(bodies), list[float]()
    with selectors.DefaultSelector() as selector:
        began = time.perf_counter()
        connections = [Connection(order, waiting, latencies) for _ in range(order.connections)]
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while not all(connection.is_done for connection in connections):
            for key, _ in selector.select():
                key.data.receive()
        seconds = time.perf_counter() - began
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "answers": len(latencies),
        "failed": sum(connection.failed for connection in connections),
        "per_second": len(bodies) / seconds,
        "p50": cuts[49],
        "p99": cuts[98],
        "processor_seconds": time.process_time(),
    }


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    print(json.dumps(run(Order(**asked | {"messages": Path(asked["messages"])}))))
