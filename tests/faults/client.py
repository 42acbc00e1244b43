"""Clients who ask, insist, watch, and write down every answer they were given."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import grpc
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1.cache_pb2_grpc import CacheServiceStub
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from glossa.worker.v1 import worker_pb2
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from services.runtime.status import from_call
from tests.faults.house import House
from tests.suite import lecture

CALL_SECONDS = 15.0
WATCH_SECONDS = 30.0
PAUSE_SECONDS = 0.2
# Trouble that goes by: the client waits and asks again with the same request_id.
PASSING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
RATE_LIMITED, DEAD = "RATE_LIMITED", "REQUEST_ID_DEAD"
GENERATING = cache_pb2.GENERATION_STATUS_GENERATING
READY = cache_pb2.GENERATION_STATUS_READY
CACHES, WORKERS = ("cache-1", "cache-2"), ("worker-1", "worker-2")
REPLAYED = quota_pb2.OUTCOME_REPLAYED


class Dead(Exception):
    """The request was given up before it was answered; another id is needed."""


class Wrong(Exception):
    """The client was told what nobody should ever be told."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a client wants; page 0 is the whole document as Markdown."""

    request_id: str
    user: str
    pdf_hash: str
    page: int


@dataclass(kw_only=True)
class Acknowledged:
    """An answer that was given: whatever happens afterwards, it must stay true."""

    ask: Ask
    generation_id: str
    outcome: int
    # How the generation ended, as far as the client was told.
    status: int = GENERATING


@dataclass(kw_only=True)
class Log:
    """What all clients were told, and what nobody should ever be told."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    # Ids that were dead before anybody was answered.
    given_up: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    retries: int = 0
    # How far beyond its deadline a call ended, at worst.
    late_seconds: float = 0.0


class Client:
    """One user, seeded: what it asks for is the same each time."""

    def __init__(self, house: House, log: Log, *, user: str, seed: str) -> None:
        self.user = user
        self._house = house
        self._log = log
        self._random = random.Random(seed)
        self._bearer = house.bearer()
        # file id, hash and pages
        self._held: list[tuple[str, str, int]] = []
        self._own: set[str] = set()
        self._answers: list[Acknowledged] = []

    async def upload(self, content: bytes, pages: int) -> str:
        async def once() -> registry_pb2.UploadDocumentResponse:
            stub: RegistryServiceStub = RegistryServiceStub(self._house.front("registry"))
            return await stub.UploadDocument(
                _parts(self.user, content), metadata=self._bearer, timeout=CALL_SECONDS
            )

        answer: registry_pb2.UploadDocumentResponse = await self._insist(once)
        self._held.append((answer.file.file_id, answer.document.pdf_hash, pages))
        return answer.document.pdf_hash

    async def go_on(self, stop: asyncio.Event) -> None:
        """Ask for one thing after another until told to stop; what was begun is finished."""
        with contextlib.suppress(Wrong):  # it is in the log
            while not stop.is_set():
                await self.do_something()

    async def do_something(self) -> None:
        dice = self._random.random()
        if dice < 0.06:
            await self._bring_a_document()
        elif dice < 0.1 and self._own:
            await self._remove_a_document()
        elif dice < 0.25 and self._answers:
            await self.ask_again(self._random.choice(self._answers))
        else:
            _, pdf_hash, pages = self._random.choice(self._held)
            page = 0 if dice > 0.96 else self._random.randint(1, pages)
            await self.get(pdf_hash, page, twice=self._random.random() < 0.3)

    async def get(self, pdf_hash: str, page: int, *, twice: bool = False) -> Acknowledged:
        """Ask until there is a result; whatever fails is asked for anew."""
        while True:
            request_id = str(UUID(int=self._random.getrandbits(128), version=4))
            ask = Ask(request_id=request_id, user=self.user, pdf_hash=pdf_hash, page=page)
            try:
                answers = await asyncio.gather(*(self._answered(ask) for _ in range(1 + twice)))
            except Dead:
                self._log.given_up.append(ask.request_id)
                continue
            self._expect_same(ask, answers)
            found = next((one for one in answers if one.outcome != REPLAYED), answers[0])
            known = Acknowledged(ask=ask, generation_id=found.generation_id, outcome=found.outcome)
            if not _failed_before(found):
                self._log.acknowledged.append(known)
                self._answers.append(known)
                known.status = found.status
                if found.status == GENERATING:
                    known.status = await self._followed(known.generation_id)
            if known.status == READY:
                return known
            await asyncio.sleep(PAUSE_SECONDS)

    async def ask_again(self, known: Acknowledged) -> None:
        """The same id, another time: the same answer, whatever happened in between."""
        if all(known.ask.pdf_hash != pdf_hash for _, pdf_hash, _ in self._held):
            return  # given away since
        try:
            answer = await self._answered(known.ask)
        except Dead:
            # A failed generation's requests are given back, and still answered.
            self._log.wrong.append(f"{known.ask.request_id} was answered and is dead now")
            return
        self._expect(answer.outcome == REPLAYED, f"{known.ask} was charged anew")
        self._expect(
            answer.generation_id == known.generation_id,
            f"{known.ask}: {known.generation_id} became {answer.generation_id}",
        )

    async def _bring_a_document(self) -> None:
        text = [f"{self.user} writes about {self._random.random()}." for _ in range(2)]
        self._own.add(await self.upload(lecture(*text), len(text)))

    async def _remove_a_document(self) -> None:
        pdf_hash = self._random.choice(sorted(self._own))
        self._own.discard(pdf_hash)
        [held] = [one for one in self._held if one[1] == pdf_hash]
        self._held.remove(held)
        request = registry_pb2.DeleteFileRequest(
            owner=registry_pb2.Owner(user_id=self.user), file_id=held[0]
        )
        stub: RegistryServiceStub = RegistryServiceStub(self._house.front("registry"))
        # Gone already: the first try did it, and its answer was lost.
        await self._insist(
            lambda: stub.DeleteFile(request, metadata=self._bearer, timeout=CALL_SECONDS),
            may_be_gone=True,
        )

    async def _answered(self, ask: Ask) -> Any:
        """By either Cache; another try asks the other one."""
        turn = self._random.randrange(len(CACHES))

        async def once() -> Any:
            nonlocal turn
            turn += 1
            stub: CacheServiceStub = CacheServiceStub(self._house.front(CACHES[turn % len(CACHES)]))
            return await _call(stub, ask, self._bearer)

        return await self._insist(once)

    async def _insist(
        self, once: Callable[[], Awaitable[Any]], *, may_be_gone: bool = False
    ) -> Any:
        while True:
            began = time.monotonic()
            try:
                return await once()
            except grpc.aio.AioRpcError as error:
                reason = from_call(error).reason
                if reason == DEAD:
                    raise Dead from error
                if error.code() is grpc.StatusCode.NOT_FOUND and may_be_gone:
                    return None
                if error.code() not in PASSING and reason != RATE_LIMITED:
                    raise self._wrong(f"{error.code()} {reason} {error.details()}") from error
            finally:
                late = time.monotonic() - began - CALL_SECONDS
                self._log.late_seconds = max(self._log.late_seconds, late)
            self._log.retries += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def _followed(self, generation_id: str) -> int:
        """Watch to the end, at whichever worker answers, without missing a number."""
        request = worker_pb2.WatchGenerationRequest(generation_id=generation_id, user_id=self.user)
        turn = self._random.randrange(2)
        while True:
            stub: WorkerServiceStub = WorkerServiceStub(
                self._house.front(WORKERS[turn % len(WORKERS)])
            )
            call = stub.WatchGeneration(request, metadata=self._bearer, timeout=WATCH_SECONDS)
            try:
                async for message in call:
                    self._hear(request, message)
                    if message.status != GENERATING:
                        return message.status
            except grpc.aio.AioRpcError as error:
                if error.code() not in PASSING:
                    raise self._wrong(f"watch: {error.code()} {error.details()}") from error
            turn += 1
            await asyncio.sleep(PAUSE_SECONDS)

    def _hear(
        self,
        request: worker_pb2.WatchGenerationRequest,
        message: worker_pb2.WatchGenerationResponse,
    ) -> None:
        step = message.sequence - request.after_sequence
        if request.resume and not message.snapshot:
            self._expect(step in (0, 1), f"{request.generation_id}: event {step} steps on")
        request.after_sequence, request.resume = message.sequence, True

    def _expect_same(self, ask: Ask, answers: list[Any]) -> None:
        ids = {answer.generation_id for answer in answers if not _failed_before(answer)}
        self._expect(len(ids) <= 1, f"{ask} got {ids}")
        charged = [one for one in answers if one.outcome != REPLAYED and not _failed_before(one)]
        self._expect(len(charged) <= 1, f"{ask} was charged {len(charged)} times")

    def _wrong(self, what: str) -> Wrong:
        self._log.wrong.append(f"{self.user}: {what}")
        return Wrong(what)

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self._log.wrong.append(otherwise)


def _failed_before(answer: Any) -> bool:
    """A failure that is remembered: nothing was bought, and the id is not used up."""
    return bool(
        answer.outcome == quota_pb2.OUTCOME_CACHED
        and answer.status == cache_pb2.GENERATION_STATUS_FAILED
    )


async def _call(stub: CacheServiceStub, ask: Ask, bearer: grpc.aio.Metadata) -> Any:
    if not ask.page:
        return await stub.ConvertDocument(
            cache_pb2.ConvertDocumentRequest(
                user_id=ask.user, pdf_hash=ask.pdf_hash, request_id=ask.request_id
            ),
            metadata=bearer,
            timeout=CALL_SECONDS,
        )
    return await stub.ExplainPage(
        cache_pb2.ExplainPageRequest(
            user_id=ask.user,
            pdf_hash=ask.pdf_hash,
            page=ask.page,
            locale="en",
            request_id=ask.request_id,
        ),
        metadata=bearer,
        timeout=CALL_SECONDS,
    )


async def _parts(user: str, content: bytes) -> AsyncIterator[registry_pb2.UploadDocumentRequest]:
    owner = registry_pb2.Owner(user_id=user)
    yield registry_pb2.UploadDocumentRequest(
        header=registry_pb2.UploadDocumentRequest.Header(owner=owner)
    )
    yield registry_pb2.UploadDocumentRequest(chunk=content)
