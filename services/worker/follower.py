"""What one followed generation has come to, shared by all streams that look at it."""

import asyncio
from collections.abc import AsyncIterator

from services.runtime.errors import GlossaError
from services.worker.generation import Event, GenerationView, Update, event_update, view_update


class Follower:
    """Keeps the events of a generation; each stream holds only its place among them."""

    def __init__(self, view: GenerationView) -> None:
        self.watchers = 0
        self.sequence = 0
        self._events: list[Event] = []
        self._view = view
        self._end: GenerationView | None = None
        self._error: GlossaError | None = None
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether the end was recorded and is known in full."""
        return self._end is not None and bool(self._events) and self._events[-1].ends

    def add_event(self, event: Event) -> None:
        if event.sequence > self.sequence:
            self.sequence = event.sequence
            self._events.append(event)
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

    async def updates(self, *, after_sequence: int) -> AsyncIterator[Update]:
        """Every recorded change after a sequence, and places in the queue in between."""
        position, sequence, view = 0, after_sequence, self._view
        while True:
            changed = self._changed
            for event in self._told(position):
                position += 1
                # The end is told whatever sequence the caller made up.
                if event.sequence > sequence or event.ends:
                    sequence = event.sequence
                    yield self._update(event)
                if event.ends:
                    return
            if self._error is not None:
                raise self._error
            if view is not self._view:
                view = self._view
                if view.waits:
                    yield view_update(view, sequence=sequence)
            await changed.wait()

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

    def _wake(self) -> None:
        """Wakes every stream; who comes later waits for the next change."""
        self._changed.set()
        self._changed = asyncio.Event()


def _place(view: GenerationView) -> tuple[object, ...]:
    return (view.stage, view.attempts, view.queue_position)
