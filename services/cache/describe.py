"""Tells the whole story of a request: how it was served and why, what it cost, how it went."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from services.cache.clients import Charge, QuotaClient
from services.cache.domain import (
    SHARED_SCOPE,
    AttemptFailure,
    Generation,
    GenerationClocks,
    Outcome,
    Queue,
    Request,
    RequestNotFound,
    RequestRecord,
    RequestState,
    Status,
)
from services.cache.generation_store import GenerationStore
from services.cache.job_domain import Clocks
from services.cache.queue import Pace
from services.cache.request_store import RequestStore
from services.runtime.errors import DependencyDown


@dataclass(frozen=True, kw_only=True)
class Story:
    """What is known of a request; parts that do not exist are None."""

    request_id: UUID
    user_id: str
    record: RequestRecord | None
    charge: Charge | None
    charge_known: bool
    generation: Generation | None
    queue: Queue
    clocks: GenerationClocks | None
    queue_deadline_at: datetime | None
    attempts_left: int
    failures: tuple[AttemptFailure, ...]

    @property
    def outcome(self) -> Outcome | None:
        if self.charge is not None:
            return self.charge.outcome
        return self.record.request.outcome if self.record else None

    @property
    def state(self) -> RequestState:
        if self.record is not None:
            return self.record.request.state
        # Hits leave no record here: who was charged was served.
        refunded = self.charge is not None and self.charge.refunded
        return RequestState.FAILED if refunded else RequestState.SERVED

    @property
    def units(self) -> int:
        if self.charge is not None:
            return self.charge.units
        if self.record is None or self.state is RequestState.FAILED:
            return 0  # what a failed one cost is given back
        return self.record.units or 0

    def sentences(self) -> list[str]:
        """The story for people, oldest first."""
        return [*self._beginning(), *self._attempts(), *self._end()]

    def _beginning(self) -> Iterator[str]:
        if self.outcome is not None:
            yield _SERVED[self.outcome]
        if self.record is not None and self.record.request.scope != SHARED_SCOPE:
            yield "The user does not share: the result is kept for this user alone."
        if not self.charge_known:
            yield "Quota does not answer, so what was charged is as the Cache remembers it."
        elif self.charge is None:
            yield "Nothing has been charged for it."
        else:
            yield f"It costs {self.charge.units} unit(s), as the ledger stands."

    def _attempts(self) -> Iterator[str]:
        for failure in self.failures:
            yield f"Attempt {failure.attempt} failed: {failure.reason} ({failure.message})."
        if self.queue.position:
            yield f"It waits at place {self.queue.position} of the queue."
        elif self.clocks and self.clocks.leased_until:
            yield f"A worker is at attempt {self.generation.attempts if self.generation else 0}."

    def _end(self) -> Iterator[str]:
        yield _STATES[self.state]
        if self.state is RequestState.FAILED and self.generation is not None:
            yield f"The reason: {self.generation.error_reason} ({self.generation.error_message})."
        if self.record is not None and self.record.refund_due:
            yield "A refund is written down and on its way to Quota."
        elif self.charge is not None and self.charge.refunded:
            yield "What was charged has been given back."


_SERVED = {
    Outcome.GENERATED: "The result had to be made, and this request started it.",
    Outcome.JOINED: "The result was being made for somebody else, and this request joined.",
    Outcome.CACHED: "The result was there already.",
}
_STATES = {
    RequestState.INTENT: "It is written down but not attached yet: a retry or the sweep goes on.",
    RequestState.WAITING: "It waits for its result.",
    RequestState.SERVED: "It has been served.",
    RequestState.FAILED: "Its generation failed.",
    RequestState.ABORTED: "It was given up before it bought anything; the id cannot be used again.",
}


class DescribeRequest:
    """The use case behind CacheService.DescribeRequest."""

    def __init__(
        self,
        *,
        requests: RequestStore,
        generations: GenerationStore,
        quota: QuotaClient,
        pace: Pace,
        clocks: Clocks,
    ) -> None:
        self._requests = requests
        self._generations = generations
        self._quota = quota
        self._pace = pace
        self._clocks = clocks

    async def describe(self, request_id: UUID, user_id: str | None) -> Story:
        """The story as this user may hear it; None hears every request on record here."""
        record = await self._requests.read_record(request_id)
        owner = user_id or (record.request.user_id if record else None)
        if owner is None or (record is not None and record.request.user_id != owner):
            raise _unknown()
        try:
            charge, charge_known = await self._quota.read_charge(request_id, owner), True
        except DependencyDown:
            if record is None:  # it may be a hit, which only Quota knows of
                raise
            charge, charge_known = None, False
        if record is None and charge is None:
            raise _unknown()
        return await self._tell(request_id, owner, record, charge, charge_known=charge_known)

    async def _tell(
        self,
        request_id: UUID,
        user_id: str,
        record: RequestRecord | None,
        charge: Charge | None,
        *,
        charge_known: bool,
    ) -> Story:
        generation = await self._generation(record.request if record else None, charge)
        queue = Queue()
        clocks: GenerationClocks | None = None
        failures: tuple[AttemptFailure, ...] = ()
        if generation is not None:
            clocks, failures = await self._generations.read_history(generation.generation_id)
            if generation.status is Status.GENERATING:
                queue = await self._generations.read_queue(
                    generation.generation_id, seconds_each=self._pace.seconds
                )
            else:
                clocks = None  # none of them runs any more
        waits_since = clocks.waits_since if clocks else None
        return Story(
            request_id=request_id,
            user_id=user_id,
            record=record,
            charge=charge,
            charge_known=charge_known,
            generation=generation,
            queue=queue,
            clocks=clocks,
            queue_deadline_at=waits_since + self._clocks.queue_wait if waits_since else None,
            attempts_left=max(0, self._clocks.max_attempts - clocks.tried) if clocks else 0,
            failures=failures,
        )

    async def _generation(
        self, request: Request | None, charge: Charge | None
    ) -> Generation | None:
        generation_id = request.generation_id if request else None
        generation_id = generation_id or (charge.generation_id if charge else None)
        return await self._generations.read_generation(generation_id) if generation_id else None


def _unknown() -> RequestNotFound:
    return RequestNotFound("there is no such request for this user")
