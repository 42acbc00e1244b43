"""Watches generations: one follower per generation, however many streams look at it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from uuid import UUID

import structlog

from services.runtime.errors import DependencyDown, GlossaError
from services.runtime.periodic import Periodic, periodic
from services.worker.clients import Cache
from services.worker.follower import Follower
from services.worker.generation import (
    GenerationView,
    Update,
    event_update,
    missing_end,
    snapshot,
    view_update,
)
from services.worker.metrics import FOLLOWED, WATCHERS
from services.worker.store import EventStore

log = structlog.get_logger()

EVERY = timedelta(seconds=1)
# How many followers ask the Cache at the same time.
CACHE_CALLS = 16


class Draining(DependencyDown):
    """This replica is going away; another one continues where the stream stopped."""

    def __init__(self) -> None:
        super().__init__("this worker is shutting down; resume elsewhere", reason="DRAINING")


class Watches:
    """Polls for all followers together; notifications only make it quicker."""

    def __init__(self, *, events: EventStore, cache: Cache) -> None:
        self._events = events
        self._cache = cache
        self._followers: dict[UUID, Follower] = {}
        self._polling: Periodic | None = None
        self._asking: Periodic | None = None
        self._draining = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            start = stack.enter_async_context
            self._polling = await start(
                periodic("poll_events", every=EVERY, run_once=self._poll_events)
            )
            self._asking = await start(periodic("ask_cache", every=EVERY, run_once=self._ask_cache))
            await start(periodic("listen", every=EVERY, run_once=self._listen))
            yield

    def drain(self) -> None:
        """Ends every stream; clients resume at another replica."""
        self._draining = True
        for follower in self._followers.values():
            follower.fail(Draining())

    async def watch(
        self, generation_id: UUID, *, user_id: str, after_sequence: int
    ) -> AsyncGenerator[Update]:
        """Where the generation stands and every later change, until it ends."""
        view = await self._cache.get_generation(generation_id, user_id=user_id)
        with self._following(view) as follower:
            seen = after_sequence
            async for update in self._first_updates(view, after_sequence):
                yield update
                seen = update.sequence
                if update.ends:
                    return
            if view.ended:
                return  # the caller has seen the end before
            async for update in follower.updates(after_sequence=seen):
                yield update

    async def _first_updates(
        self, view: GenerationView, after_sequence: int
    ) -> AsyncIterator[Update]:
        """The snapshot of a new watch, or what a resumed one has missed."""
        if view.ended:
            await self._record_end(view)
        newest = await self._events.get_newest_event(view.generation_id)
        if newest is not None and newest.ends and not view.ended:
            view = await self._cache.get_generation(view.generation_id)
        if after_sequence == 0:
            if view.ended:
                yield view_update(view, sequence=newest.sequence if newest else 0)
            else:
                yield snapshot(view, newest)
            return
        for event in await self._events.list_events(
            view.generation_id, after_sequence=after_sequence
        ):
            if event.ends and not view.ended:
                return  # it ended just now: the follower tells the end with its stickers
            yield (
                view_update(view, sequence=event.sequence) if event.ends else event_update(event)
            )

    @contextmanager
    def _following(self, view: GenerationView) -> Iterator[Follower]:
        if self._draining:
            raise Draining
        generation_id = view.generation_id
        follower = self._followers.setdefault(generation_id, Follower(view))
        follower.watchers += 1
        WATCHERS.inc()
        FOLLOWED.set(len(self._followers))
        try:
            yield follower
        finally:
            WATCHERS.dec()
            follower.watchers -= 1
            if follower.watchers == 0:
                del self._followers[generation_id]
            FOLLOWED.set(len(self._followers))

    async def _listen(self) -> None:
        await self._events.listen(self._wake)

    def _wake(self) -> None:
        if self._polling is not None:
            self._polling.wake()

    async def _poll_events(self) -> None:
        """One query for all followers."""
        after = {one: follower.sequence for one, follower in self._followers.items()}
        if not after:
            return
        ended = False
        for event in await self._events.list_events_of_many(after):
            follower = self._followers.get(event.generation_id)
            if follower is not None:
                follower.add_event(event)
                ended = ended or event.ends
        if ended and self._asking is not None:
            self._asking.wake()  # for the stickers

    async def _ask_cache(self) -> None:
        """How the followed generations stand; a round takes as long as the Cache lets it."""
        limit = asyncio.Semaphore(CACHE_CALLS)

        async def ask(generation_id: UUID, follower: Follower) -> None:
            async with limit:
                await self._ask_about(generation_id, follower)

        await asyncio.gather(*(ask(*one) for one in list(self._followers.items())))

    async def _ask_about(self, generation_id: UUID, follower: Follower) -> None:
        if follower.watchers == 0:
            return
        try:
            view = await self._cache.get_generation(generation_id)
            follower.see(view)
            if view.ended and not follower.ended:
                await self._record_end(view)
                self._wake()
        except DependencyDown as error:
            log.warning("generation_not_checked", reason=error.reason)
        except GlossaError as error:
            follower.fail(error)

    async def _record_end(self, view: GenerationView) -> None:
        """Records an end that no worker could: a sweep decided it, or the worker died after it."""
        newest = await self._events.get_newest_event(view.generation_id)
        if newest is None or not newest.ends:
            await self._events.append_event(missing_end(view, newest))
