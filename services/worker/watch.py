"""Watches generations: one follower per generation, however many streams look at it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Generic
from uuid import UUID

import structlog

from services.runtime.errors import DependencyDown, GlossaError
from services.runtime.periodic import Periodic, periodic
from services.worker.clients import Cache
from services.worker.follower import Follower, Message, Render
from services.worker.generation import (
    Event,
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
# How many followers ask the Cache for their result at the same time.
CACHE_CALLS = 16
VIEWS_PER_CALL = 500


class Draining(DependencyDown):
    """This replica is going away; another one continues where the stream stopped."""

    def __init__(self) -> None:
        super().__init__("this worker is shutting down; resume elsewhere", reason="DRAINING")


class Watches(Generic[Message]):
    """Looks for all followers together; notifications only make it quicker."""

    def __init__(
        self, *, events: EventStore, cache: Cache, render: Render[Message], heartbeat: timedelta
    ) -> None:
        self._events = events
        self._cache = cache
        self._render = render
        self._heartbeat = heartbeat
        self._followers: dict[UUID, Follower[Message]] = {}
        # Followed generations that are known to have new events.
        self._changed: set[UUID] = set()
        self._reading: Periodic | None = None
        # One at a time for each generation, however slow the Cache is.
        self._fetching: dict[UUID, asyncio.Task[None]] = {}
        self._cache_calls = asyncio.Semaphore(CACHE_CALLS)
        self._draining = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            start = stack.enter_async_context
            self._reading = await start(
                periodic("read_changed", every=EVERY, run_once=self._read_changed)
            )
            await start(periodic("read_all", every=EVERY, run_once=self._read_all))
            await start(periodic("ask_cache", every=EVERY, run_once=self._ask_cache))
            await start(periodic("listen", every=EVERY, run_once=self._listen))
            try:
                yield
            finally:
                fetching = list(self._fetching.values())
                for task in fetching:
                    task.cancel()
                await asyncio.gather(*fetching, return_exceptions=True)

    def drain(self) -> None:
        """Ends every stream; clients resume at another replica."""
        self._draining = True
        for follower in self._followers.values():
            follower.fail(Draining())

    async def watch(
        self, generation_id: UUID, *, user_id: str, after_sequence: int | None
    ) -> AsyncGenerator[Message]:
        """Where the generation stands and every later change, until it ends.

        With `after_sequence`, only the changes that came after it.
        """
        view = await self._cache.get_generation(generation_id, user_id=user_id)
        with self._following(view) as follower:
            seen = replace(snapshot(view, None), sequence=after_sequence or 0)
            async for update in self._first_updates(view, after_sequence):
                yield self._render(update)
                seen = update
                if update.ends:
                    return
            if view.ended:
                return  # the caller has seen the end before
            # What goes on from here needs no second copy of what was told.
            seen = replace(seen, stickers=(), markdown="")
            async for message in follower.updates(seen, heartbeat=self._heartbeat):
                yield message

    async def _first_updates(
        self, view: GenerationView, after_sequence: int | None
    ) -> AsyncIterator[Update]:
        """The snapshot of a new watch, or what a resumed one has missed."""
        newest = await self._events.get_newest_event(view.generation_id)
        if newest is not None and newest.ends and not view.ended:
            view = await self._cache.get_generation(view.generation_id)
        if view.ended and newest is not None and not newest.ends:
            await self._record_end(view)
            newest = await self._events.get_newest_event(view.generation_id)
        if (
            after_sequence is None
            or newest is None
            or (view.ended and after_sequence > newest.sequence)
        ):
            # With no events left, a caller who has seen some is told how things stand now; so is
            # one who names a sequence that never was, and cannot know of the end.
            sequence = newest.sequence if newest else after_sequence or 0
            if view.ended:
                first = view_update(view, sequence=sequence)
            else:
                first = replace(snapshot(view, newest), sequence=sequence)
            yield replace(first, snapshot=True)
            return
        async for update in self._missed_updates(view, after_sequence):
            yield update

    async def _missed_updates(
        self, view: GenerationView, after_sequence: int
    ) -> AsyncIterator[Update]:
        for event in await self._events.list_events(
            view.generation_id, after_sequence=after_sequence
        ):
            if event.ends and not view.ended:
                return  # it ended just now: the follower tells the end with its stickers
            yield (
                view_update(view, sequence=event.sequence) if event.ends else event_update(event)
            )

    @contextmanager
    def _following(self, view: GenerationView) -> Iterator[Follower[Message]]:
        if self._draining:
            raise Draining
        generation_id = view.generation_id
        follower = self._followers.get(generation_id)
        if follower is None:
            follower = self._followers[generation_id] = Follower(view, self._render)
            self._hear([generation_id])  # to be up to date when the next event comes
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
        await self._events.listen(self._hear, self._take)

    def _take(self, event: Event) -> None:
        """What was recorded here needs no look, if it is the next."""
        follower = self._followers.get(event.generation_id)
        if follower is not None and event.sequence == follower.sequence + 1:
            self._add_event(follower, event)
        else:
            self._hear([event.generation_id])

    def _hear(self, generation_ids: Iterable[UUID]) -> None:
        if changed := self._followers.keys() & set(generation_ids):
            self._changed |= changed
            if self._reading is not None:
                self._reading.wake()

    async def _read_changed(self) -> None:
        """What somebody told us to look at."""
        changed, self._changed = self._changed, set()
        await self._read_events(
            {one: self._followers[one].sequence for one in changed if one in self._followers}
        )

    async def _read_all(self) -> None:
        """One query for all followers, in case somebody was not heard."""
        await self._read_events(
            {
                one: follower.sequence
                for one, follower in self._followers.items()
                if not follower.awaits_nothing
            }
        )

    async def _read_events(self, after: Mapping[UUID, int]) -> None:
        if not after:
            return
        for event in await self._events.list_events_of_many(after):
            follower = self._followers.get(event.generation_id)
            if follower is not None:
                self._add_event(follower, event)

    def _add_event(self, follower: Follower[Message], event: Event) -> None:
        follower.add_event(event)
        if event.ends and not follower.ended:
            self._fetch_result(event.generation_id)

    def _fetch_result(self, generation_id: UUID) -> None:
        """In a task of its own: others need not wait for its stickers."""
        if generation_id in self._fetching:
            return
        task = asyncio.create_task(self._ask_about(generation_id))
        self._fetching[generation_id] = task
        task.add_done_callback(lambda _: self._fetching.pop(generation_id))

    async def _ask_cache(self) -> None:
        """How the followed generations stand: places in the queue, ends that nobody recorded."""
        wanted = [one for one, follower in self._followers.items() if not follower.ended]
        for start in range(0, len(wanted), VIEWS_PER_CALL):
            piece = wanted[start : start + VIEWS_PER_CALL]
            views = {view.generation_id: view for view in await self._cache.get_generations(piece)}
            for generation_id in piece:
                self._see(generation_id, views.get(generation_id))

    def _see(self, generation_id: UUID, view: GenerationView | None) -> None:
        follower = self._followers.get(generation_id)
        if follower is None:
            return
        if view is not None and not view.ended:
            follower.see(view)
        elif not follower.ended:
            # Ended, or not there any more: it is asked about by itself.
            self._fetch_result(generation_id)

    async def _ask_about(self, generation_id: UUID) -> None:
        async with self._cache_calls:
            # Looked up only now: while this waited for its turn, everybody may have gone.
            follower = self._followers.get(generation_id)
            if follower is not None and not follower.ended:
                await self._fetch_for(follower, generation_id)

    async def _fetch_for(self, follower: Follower[Message], generation_id: UUID) -> None:
        try:
            view = await self._cache.get_generation(generation_id)
            follower.see(view)
            if view.ended and not follower.ended:
                await self._record_end(view)
                self._hear([generation_id])
        except DependencyDown as error:
            log.warning("generation_not_checked", reason=error.reason)
        except GlossaError as error:
            follower.fail(error)

    async def _record_end(self, view: GenerationView) -> None:
        """Records an end that no worker could: a sweep decided it, or the worker died after it."""
        newest = await self._events.get_newest_event(view.generation_id)
        if newest is None or not newest.ends:
            await self._events.append_event(missing_end(view, newest))
