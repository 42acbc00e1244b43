"""What the rows about cache hits share: a page that is ready and a thousand users who hold it."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pymupdf
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub

from tests.bench.documents import hold_by_all
from tests.bench.load import write_messages
from tests.bench.stand import Stand

USERS = 1_000
EXPLAIN_PAGE = "/glossa.cache.v1.CacheService/ExplainPage"
ECHO = "/bench.Echo/Echo"
IN_FLIGHT, CONNECTIONS = 128, 4
COUNT_CHARGES = "SELECT count(*) FROM quota.explain_requests"
TEXT = """Entropy is a measure of disorder. The second law of thermodynamics says that the entropy
of an isolated system never decreases. A process is reversible if the entropy of system and
surroundings stays the same. Boltzmann related entropy to the number of microscopic states:
S equals k times the logarithm of W. Heat flows from hot bodies to cold ones because that raises
the total entropy. An engine that works between two heat baths cannot be more efficient than a
Carnot engine between the same two. Information theory uses the same formula for uncertainty."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What a burst of requests came to."""

    per_second: float
    p50: float
    p99: float


def lecture_page() -> bytes:
    """A page with as much text as pages have, so that its explanation has a usual size."""
    document: Any = pymupdf.open()  # type: ignore[no-untyped-call]
    document.new_page().insert_textbox((72, 72, 523, 770), TEXT)
    content: bytes = document.tobytes()
    return content


async def load(
    address: str,
    method: str,
    messages: Path,
    *,
    token: str,
    in_flight: int = IN_FLIGHT,
    connections: int = CONNECTIONS,
) -> Loaded:
    """Send the messages of a file; every one must be answered with OK."""
    order = {
        "port": int(address.rpartition(":")[2]),
        "method": method,
        "token": token,
        "messages": str(messages),
        "connections": connections,
        "in_flight": in_flight,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.load"), stdin=PIPE, stdout=PIPE
    )
    out, _ = await process.communicate(json.dumps(order).encode())
    answer = json.loads(out)
    assert answer["failed"] == 0, f"{answer['failed']} of {answer['answers']} failed"
    return Loaded(**{name: answer[name] for name in ("per_second", "p50", "p99")})


@asynccontextmanager
async def bare_echo() -> AsyncIterator[str]:
    """The address of a server that gives every message back, and does nothing else."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.echo"), stdout=PIPE
    )
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.terminate()
        await process.wait()


class Hits:
    """A page that is ready; requests for it are charged, and each is a line in the ledger."""

    def __init__(self, stand: Stand, folder: Path) -> None:
        self._stand = stand
        self._folder = folder
        self.token = stand.token("gateway")
        self._hash = ""
        self.payload = b""

    async def open(self, users: int = USERS) -> None:
        """Give everybody the document, have its page explained, and wake everything up."""
        self._hash = await hold_by_all(self._stand, users, lecture_page())
        cache = CacheServiceStub(await self._stand.channel("cache"))
        while not self.payload:
            answer = await cache.ExplainPage(
                self._request(0), metadata=self._stand.bearer("gateway")
            )
            self.payload = answer.SerializeToString() if answer.stickers else b""

    def _request(self, user: int, request_id: str = "") -> cache_pb2.ExplainPageRequest:
        return cache_pb2.ExplainPageRequest(
            user_id=f"user-{user}", pdf_hash=self._hash, page=1, locale="en", request_id=request_id
        )

    def write_requests(self, count: int, *, own_ids: bool, users: int = USERS) -> Path:
        """New requests; their ids are the caller's, or left to the Cache."""
        path = self._folder / uuid4().hex
        ids: Sequence[str] = [str(uuid4()) if own_ids else "" for _ in range(count)]
        messages = (self._request(n % users, one) for n, one in enumerate(ids))
        write_messages(path, [message.SerializeToString() for message in messages])
        return path

    def write_echoes(self, count: int) -> Path:
        path = self._folder / uuid4().hex
        write_messages(path, [self.payload] * count)
        return path
