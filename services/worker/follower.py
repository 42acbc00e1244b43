"""What one followed generation has come to, shared by all streams that look at it."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Generic, TypeVar

from services.runtime.errors import GlossaError
from services.worker.generation import Event, GenerationView, Update, event_update, view_update

# What a stream sends: an update as it goes over the wire.
Message = TypeVar("Message")
Render = Callable[[Update], Message]


class Follower(Generic[Message]):
    """Keeps the events of a generation; each stream holds only its place among them.

    A stream that is slow falls behind alone: nothing is queued for it, it finds here what it has
    not sent yet. Messages are rendered once, however many streams send them.
    """

    def __init__(self, view: GenerationView, render: Render[Message]) -> None:
        self.watchers = 0
        self.sequence = 0
        self._render = render
        self._events: list[Event] = []
        self._messages: dict[int, Message] = {}
        self._view = view
        self._end: GenerationView | None = None
        self._error: GlossaError | None = None
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the end was recorded and is known in full."""
        return self._end is not None and self.awaits_nothing

    @property
    def awaits_nothing(self) -> bool:
        """Whether the end was recorded; its result may still be on its way."""
        return bool(self._events) and self._events[-1].ends

    def add_event(self, event: Event) -> None:
        if event.sequence > self.sequence:
            self.sequence = event.sequence
            self._events.append(event)
            # An end is told together with its result.
            if not event.ends or self._end is not None:
                self._wake()

    def see(self, view: GenerationView) -> None:
        """Takes in what the Cache says: a new place in the queue, or the end with its result."""
        if view.ended:
            self._end = view
            self._wake()
        elif _place(view) != _place(self._view) and not self._is_stale(view):
            self._view = view
            self._wake()

    def fail(self, error: GlossaError) -> None:
        self._error = error
        self._wake()

    async def updates(self, seen: Update, *, heartbeat: timedelta) -> AsyncIterator[Message]:
        """Every recorded change after `seen`, places in the queue in between, signs of life."""
        position, last, view = 0, seen, self._view
        while True:
            changed = self._changed
            for event in self._told(position):
                position += 1
                # The end is told whatever sequence the caller made up.
                if event.sequence > last.sequence or event.ends:
                    last = self._update(event)
                    yield self._message(event, last)
                if event.ends:
                    return
            if self._error is not None:
                raise self._error
            if view is not self._view:
                view = self._view
                if view.waits:
                    last = view_update(view, sequence=last.sequence)
                    yield self._render(last)
            if changed is self._changed and not await _happens(changed, heartbeat):
                yield self._render(replace(last, heartbeat=True, snapshot=False))

    def _told(self, position: int) -> list[Event]:
        """What may be passed on: an end only together with its result."""
        events = self._events[position:]
        return [event for event in events if self._end is not None or not event.ends]

    def _is_stale(self, view: GenerationView) -> bool:
        """Whether an attempt has been recorded that this answer does not know of."""
        return bool(self._events) and view.attempts < self._events[-1].attempt

    def _update(self, event: Event) -> Update:
        if event.ends and self._end is not None:
            return view_update(self._end, sequence=event.sequence)
        return event_update(event)

    def _message(self, event: Event, update: Update) -> Message:
        if event.sequence not in self._messages:
            self._messages[event.sequence] = self._render(update)
        return self._messages[event.sequence]

    def _wake(self) -> None:
        """Wakes every stream; who comes later waits for the next change."""
        self._changed.set()
        self._changed = asyncio.Event()


async def _happens(event: asyncio.Event, within: timedelta) -> bool:
    """Whether it happens in time; spread, so that not all streams beat in the same moment."""
    spread = within.total_seconds() * random.uniform(0.5, 1)  # noqa: S311
    try:
        async with asyncio.timeout(spread):
            return await event.wait()
    except TimeoutError:
        return False


def _place(view: GenerationView) -> tuple[object, ...]:
    """What is worth telling: far back in the queue, not every step forward is."""
    return (view.stage, view.attempts, float(f"{view.queue_position:.1e}"))
