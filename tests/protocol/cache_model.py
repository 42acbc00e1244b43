"""The Cache's tables as the protocol sees them: requests, generations, outbox, leases."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from tests.protocol.bugs import Bug
from tests.protocol.quota_model import Refund

MAX_ATTEMPTS = 2
LIVE = ("generating", "ready")


@dataclass(frozen=True)
class Ask:
    """What one caller wants; `key` stands for document, page, locale and the rest."""

    request_id: int
    user: str
    key: str


@dataclass(frozen=True)
class Request:
    """A row of cache.requests: `held` while its holder seems alive, `old` when given up on."""

    request_id: int
    user: str
    key: str
    state: str  # intent, waiting, served, failed, aborted
    nonce: int
    held: bool
    outcome: str  # generated, joined, cached
    generation: int | None
    units: int | None = None
    old: bool = False

    def is_for(self, ask: Ask) -> bool:
        return (ask.user, ask.key) == (self.user, self.key)


@dataclass(frozen=True)
class Generation:
    """A row of cache.generations; `result` is the attempt whose result was accepted.

    A retired result is out of service: new calls do not find it, who paid for it still does.
    """

    generation_id: int
    key: str
    status: str = "generating"
    attempts: int = 0
    released: int = 0
    leased: bool = False
    lease_over: bool = False
    result: int | None = None
    ended_by: int | None = None
    retired: bool = False

    @property
    def is_live(self) -> bool:
        return self.status in LIVE and not self.retired

    @property
    def is_spent(self) -> bool:
        return self.attempts - self.released >= MAX_ATTEMPTS

    @property
    def is_free(self) -> bool:
        return self.status == "generating" and (not self.leased or self.lease_over)


@dataclass(frozen=True)
class Lease:
    generation_id: int
    attempt: int


@dataclass(frozen=True)
class Attached:
    generation: Generation
    refund: Refund | None


class CacheModel:
    """Every public method is one transaction of the real Cache."""

    def __init__(self, bug: Bug | None) -> None:
        self._bug = bug
        self._numbers = count(1)
        self.requests: dict[int, Request] = {}
        self.generations: dict[int, Generation] = {}
        self.outbox: dict[int, Refund] = {}

    # Requests.

    def read_request(self, request_id: int) -> Request | None:
        return self.requests.get(request_id)

    def open_intent(self, ask: Ask, outcome: str, generation: int | None) -> Request | None:
        if ask.request_id in self.requests:
            return None
        nonce = next(self._numbers)
        request = Request(
            ask.request_id, ask.user, ask.key, "intent", nonce, True, outcome, generation
        )
        self.requests[ask.request_id] = request
        return request

    def take_over_intent(self, request_id: int) -> Request | None:
        request = self.requests.get(request_id)
        if request is None or request.state != "intent" or request.held:
            return None
        taken = replace(request, nonce=next(self._numbers), held=True, old=False)
        self.requests[request_id] = taken
        return taken

    def give_up_intent(self, request_id: int, nonce: int) -> None:
        request = self._intent(request_id, nonce)
        if request is not None:
            self.requests[request_id] = replace(request, held=False)

    def drop_intent(self, request_id: int, nonce: int) -> None:
        if self._intent(request_id, nonce) is not None:
            del self.requests[request_id]

    def attach(self, request_id: int, nonce: int, units: int) -> Attached | None:
        request = self._intent(request_id, nonce)
        if request is None:
            return None
        generation, created = self.find_or_create(request)
        return self.write_waiter(request, generation, created=created, units=units)

    def find_or_create(self, request: Request) -> tuple[Generation, bool]:
        if request.outcome == "joined":
            assert request.generation is not None
            return self.generations[request.generation], False
        live = self.find_live(request.key)
        if live is not None and self._bug is not Bug.R7_TWO_LIVE_GENERATIONS:
            return live, False
        made = Generation(next(self._numbers), request.key)
        self.generations[made.generation_id] = made
        return made, True

    def write_waiter(
        self, request: Request, generation: Generation, *, created: bool, units: int
    ) -> Attached:
        outcome, reason = request.outcome, None
        if outcome == "generated" and not created:
            outcome = "cached" if generation.status == "ready" else "joined"
            reason = "repriced"
        elif generation.status == "failed":
            reason = "generation_failed"
        refund = None
        if reason is not None:
            served_as = outcome if reason == "repriced" else None
            refund = self._due(request, reason, served_as, generation.generation_id)
        state = {"generating": "waiting", "ready": "served", "failed": "failed"}[generation.status]
        self.requests[request.request_id] = replace(
            request,
            state=state,
            outcome=outcome,
            generation=generation.generation_id,
            units=None if refund else units,
        )
        return Attached(generation, refund)

    def abort_stale_intents(self) -> None:
        for request in list(self.requests.values()):
            if request.state == "intent" and request.old:
                self.requests[request.request_id] = replace(request, state="aborted")
                self._due(request, "request_aborted", None, None)

    def read_refunds(self) -> tuple[Refund, ...]:
        return tuple(self.outbox.values())

    def delete_refunds(self, refunds: Sequence[Refund]) -> None:
        for refund in refunds:
            self.outbox.pop(refund.outbox_id, None)

    # Generations and leases.

    def find_live(self, key: str) -> Generation | None:
        for generation in self.generations.values():
            if generation.key == key and generation.is_live:
                return generation
        return None

    def read_generation(self, generation_id: int) -> Generation | None:
        return self.generations.get(generation_id)

    def lease_job(self) -> Lease | None:
        for generation in self.generations.values():
            if generation.is_free and not generation.is_spent:
                again = self._bug is Bug.ATTEMPT_REUSED and generation.leased
                leased = replace(
                    generation,
                    attempts=generation.attempts + (0 if again else 1),
                    leased=True,
                    lease_over=False,
                )
                self.generations[leased.generation_id] = leased
                return Lease(leased.generation_id, leased.attempts)
        return None

    def renew_lease(self, lease: Lease) -> None:
        generation = self._held(lease)
        if generation is not None:
            self.generations[lease.generation_id] = replace(generation, lease_over=False)

    def complete_job(self, lease: Lease) -> bool:
        generation = self._held(lease)
        if generation is None:
            return False
        self._end(generation, "ready", lease.attempt, result=lease.attempt)
        if self._bug is not Bug.R8_SETTLE_IN_TWO_STEPS:
            self.serve_waiters(lease.generation_id)
        return True

    def fail_job(self, lease: Lease, *, permanent: bool) -> bool:
        generation = self._held(lease)
        if generation is None:
            return False
        if not permanent and not generation.is_spent:
            self.generations[lease.generation_id] = replace(generation, leased=False)
            return False
        self._end(generation, "failed", lease.attempt, result=None)
        if self._bug is not Bug.R8_SETTLE_IN_TWO_STEPS:
            self.fail_waiters(lease.generation_id)
        return True

    def release_job(self, lease: Lease) -> None:
        """A draining worker gives its job back; the number of the attempt is not used again."""
        generation = self._held(lease)
        if generation is not None:
            self.generations[lease.generation_id] = replace(
                generation, leased=False, released=generation.released + 1
            )

    def retire(self, key: str) -> None:
        """Invalidation of a result: it stays what it is, but no longer answers new calls."""
        live = self.find_live(key)
        if live is not None and live.status == "ready":
            self.generations[live.generation_id] = replace(live, retired=True)

    def end_abandoned_job(self, lease: Lease) -> None:
        generation = self.generations.get(lease.generation_id)
        if generation is not None and generation.is_free and generation.attempts == lease.attempt:
            self._end(generation, "failed", lease.attempt, result=None)
            self.fail_waiters(lease.generation_id)

    def find_spent(self) -> list[Lease]:
        free = (found for found in self.generations.values() if found.is_free)
        return [_seen(found) for found in free if found.is_spent]

    def find_overdue(self) -> list[Lease]:
        return [_seen(found) for found in self.generations.values() if found.is_free]

    def serve_waiters(self, generation_id: int) -> None:
        for request in self._waiters(generation_id):
            self.requests[request.request_id] = replace(request, state="served")

    def fail_waiters(self, generation_id: int) -> None:
        for request in self._waiters(generation_id):
            self.requests[request.request_id] = replace(request, state="failed")
            if request.units is None or request.units > 0:
                self._due(request, "generation_failed", None, generation_id)

    def _waiters(self, generation_id: int) -> list[Request]:
        return [
            request
            for request in self.requests.values()
            if request.generation == generation_id and request.state == "waiting"
        ]

    def _intent(self, request_id: int, nonce: int) -> Request | None:
        """The intent, if it is still the caller's."""
        request = self.requests.get(request_id)
        if request is None:
            return None
        if request.state != "intent" and self._bug is not Bug.R6_STATE_UNCHECKED:
            return None
        if request.nonce != nonce and self._bug is not Bug.R6_NONCE_UNCHECKED:
            return None
        return request

    def _held(self, lease: Lease) -> Generation | None:
        """The generation, if this lease still counts."""
        generation = self.generations.get(lease.generation_id)
        if generation is None:
            return None
        if self._bug is Bug.R8_STATE_UNFENCED:
            return generation if generation.attempts == lease.attempt else None
        if generation.status != "generating" or not generation.leased:
            return None
        if generation.attempts != lease.attempt and self._bug is not Bug.ATTEMPT_UNFENCED:
            return None
        return generation

    def _end(self, generation: Generation, status: str, attempt: int, result: int | None) -> None:
        self.generations[generation.generation_id] = replace(
            generation, status=status, leased=False, result=result, ended_by=attempt
        )

    def _due(
        self, request: Request, reason: str, served_as: str | None, generation: int | None
    ) -> Refund:
        refund = Refund(
            next(self._numbers), request.request_id, request.user, reason, served_as, generation
        )
        self.outbox[refund.outbox_id] = refund
        return refund


def _seen(generation: Generation) -> Lease:
    return Lease(generation.generation_id, generation.attempts)
