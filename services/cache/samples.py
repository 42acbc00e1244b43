"""Tells the Worker how long requests took: in batches, best effort, and what is lost is counted."""

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import NamedTuple
from uuid import UUID, uuid4

import structlog

from services.cache.domain import Ask, Outcome, ResolvedPage
from services.cache.metrics import SAMPLES_LOST
from services.runtime.errors import DependencyDown, GlossaError
from services.runtime.periodic import periodic

log = structlog.get_logger()

SEND_EVERY = timedelta(seconds=1)
SAMPLES_PER_CALL = 5_000
# Some seconds of the heaviest load; what is more is lost rather than kept in memory.
MOST_WAITING = 50_000


class SampleKey(NamedTuple):
    """What samples of one page have in common."""

    kind: str
    pdf_hash: str
    page: int
    locale: str
    effective_mode: str
    outcome: Outcome
    images_count: int
    chunks: int


class Sample(NamedTuple):
    """How long one request took, and when its result was there (on our own steady clock)."""

    key: SampleKey
    latency_ms: int
    at: float


# One batch: for each key its latencies and ages, in milliseconds.
Groups = Mapping[SampleKey, tuple[list[int], list[int]]]
Send = Callable[[UUID, Groups], Awaitable[None]]


class Samples:
    """Samples on their way. Noting one is all that a request has to do with it."""

    def __init__(self, send: Send | None) -> None:
        self._send = send
        self._waiting: deque[Sample] = deque()
        # A batch keeps its name until it is acknowledged, so that it counts once.
        self._batch: tuple[UUID, Sequence[Sample]] | None = None

    def note_hit(self, ask: Ask, page: ResolvedPage) -> None:
        """A request was answered from the cache just now."""
        if self._send is None:
            return
        now = time.perf_counter()
        key = SampleKey(
            ask.kind,
            page.pdf_hash,
            page.page,
            ask.locale,
            page.effective_mode,
            Outcome.CACHED,
            page.images_count,
            0,
        )
        self._add(Sample(key, int(1000 * (now - ask.asked_at)), now))

    def note_served(self, served: Iterable[tuple[SampleKey, int]]) -> None:
        """Requests that waited have got their result just now."""
        if self._send is None:
            return
        now = time.perf_counter()
        for key, latency_ms in served:
            self._add(Sample(key, latency_ms, now))

    def _add(self, sample: Sample) -> None:
        if len(self._waiting) >= MOST_WAITING:
            SAMPLES_LOST.labels("overflow").inc()
        else:
            self._waiting.append(sample)

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Sends what is noted until the block ends, and then what is left."""
        async with periodic("send_samples", every=SEND_EVERY, run_once=self.send_waiting):
            yield
        with suppress(GlossaError):
            await self.send_waiting()
        SAMPLES_LOST.labels("stopped").inc(
            len(self._waiting) + len(self._batch[1] if self._batch else ())
        )

    async def send_waiting(self) -> None:
        """Everything noted so far; while the Worker is away it waits."""
        while self._send is not None and (self._batch or self._waiting):
            if self._batch is None:
                taken = list(islice(self._waiting, SAMPLES_PER_CALL))
                for _ in taken:
                    self._waiting.popleft()
                self._batch = (uuid4(), taken)
            batch_id, samples = self._batch
            try:
                await self._send(batch_id, _grouped(samples))
            except DependencyDown:
                raise
            except GlossaError as error:
                # Sending it again would not help.
                SAMPLES_LOST.labels("refused").inc(len(samples))
                log.warning("samples_refused", reason=error.reason, count=len(samples))
            self._batch = None


def _grouped(samples: Sequence[Sample]) -> Groups:
    now = time.perf_counter()
    groups: dict[SampleKey, tuple[list[int], list[int]]] = {}
    for key, latency_ms, at in samples:
        latencies, ages = groups.setdefault(key, ([], []))
        latencies.append(latency_ms)
        ages.append(int(1000 * (now - at)))
    return groups
