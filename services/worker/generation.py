"""A generation as its watchers see it: what the Cache says, what was recorded, what to tell."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from services.worker.domain import Failure, Lease, Progress, Stage, Status, Sticker, Verdict

_WAITING = frozenset({Stage.QUEUED, Stage.RETRYING})


@dataclass(frozen=True, kw_only=True)
class GenerationView:
    """A generation as the Cache describes it."""

    generation_id: UUID
    status: Status
    stage: Stage
    attempts: int
    done: int = 0
    total: int = 0
    queue_position: int = 0
    estimated_wait: timedelta | None = None
    stickers: tuple[Sticker, ...] = ()
    markdown: str = ""
    error: Failure | None = None

    @property
    def ended(self) -> bool:
        return self.status is not Status.GENERATING

    @property
    def waits(self) -> bool:
        return not self.ended and self.stage in _WAITING


@dataclass(frozen=True, kw_only=True)
class NewEvent:
    """A change to be recorded; the database gives it its sequence."""

    generation_id: UUID
    attempt: int
    status: Status
    stage: Stage
    done: int = 0
    total: int = 0
    error_reason: str = ""
    error_message: str = ""

    @property
    def ends(self) -> bool:
        return self.status is not Status.GENERATING


@dataclass(frozen=True, kw_only=True)
class Event(NewEvent):
    """A recorded change."""

    sequence: int


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one message of a watch tells; the result or the error comes with the end."""

    sequence: int
    status: Status
    stage: Stage
    attempt: int
    done: int = 0
    total: int = 0
    queue_position: int = 0
    estimated_wait: timedelta | None = None
    stickers: tuple[Sticker, ...] = ()
    markdown: str = ""
    error: Failure | None = None
    # Nothing has changed: only a sign of life.
    heartbeat: bool = False
    # Where it stands, not a change.
    snapshot: bool = False

    @property
    def ends(self) -> bool:
        return self.status is not Status.GENERATING


def progress_event(lease: Lease, progress: Progress) -> NewEvent:
    return NewEvent(
        generation_id=lease.generation_id,
        attempt=lease.attempt,
        status=Status.GENERATING,
        stage=progress.stage,
        done=progress.done,
        total=progress.total,
    )


def ready_event(lease: Lease) -> NewEvent:
    return NewEvent(
        generation_id=lease.generation_id,
        attempt=lease.attempt,
        status=Status.READY,
        stage=Stage.READY,
    )


def failure_event(lease: Lease, failure: Failure, verdict: Verdict) -> NewEvent:
    retrying = verdict is Verdict.RETRYING
    return NewEvent(
        generation_id=lease.generation_id,
        attempt=lease.attempt,
        status=Status.GENERATING if retrying else Status.FAILED,
        stage=Stage.RETRYING if retrying else Stage.FAILED,
        error_reason=failure.reason,
        error_message=failure.message,
    )


def missing_end(view: GenerationView, newest: Event | None) -> NewEvent:
    """The terminal event of a generation that ended where no worker could record it."""
    assert view.ended
    # An attempt that was given back may have been recorded under a higher number.
    attempt = max(view.attempts, newest.attempt if newest else 0)
    error = view.error or Failure(reason="", message="")
    return NewEvent(
        generation_id=view.generation_id,
        attempt=attempt,
        status=view.status,
        stage=Stage(view.status.value),
        error_reason=error.reason,
        error_message=error.message,
    )


def snapshot(view: GenerationView, newest: Event | None) -> Update:
    """Where a live generation stands: the newest event, unless the Cache knows of a later turn."""
    recorded = newest is not None and newest.attempt >= view.attempts and not view.waits
    if newest is not None and recorded:
        return event_update(newest)
    return view_update(view, sequence=newest.sequence if newest else 0)


def event_update(event: Event) -> Update:
    return Update(
        sequence=event.sequence,
        status=event.status,
        stage=event.stage,
        attempt=event.attempt,
        done=event.done,
        total=event.total,
    )


def view_update(view: GenerationView, *, sequence: int) -> Update:
    return Update(
        sequence=sequence,
        status=view.status,
        stage=view.stage,
        attempt=view.attempts,
        # What was left of the last stage says nothing about an end.
        done=0 if view.ended else view.done,
        total=0 if view.ended else view.total,
        queue_position=view.queue_position,
        estimated_wait=view.estimated_wait,
        stickers=view.stickers,
        markdown=view.markdown,
        error=view.error,
    )
