"""What runs in a Cache process, as generators that stop at every transaction and every message.

They mirror services/cache/explain.py, sweep.py and relay.py step by step. A generator yields a
function (one transaction of its own database) or a message to Quota, and is sent what came of it;
one that is never resumed is a crash between two transactions.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.protocol.bugs import Bug
from tests.protocol.cache_model import (
    Ask,
    Attached,
    CacheModel,
    Generation,
    Lease,
    Request,
)
from tests.protocol.quota_model import Admission, Admit, Refund

Transaction = Callable[[], Any]
Refunds = tuple[Refund, ...]
Message = Admit | Refunds
Steps = Generator[Transaction | Message, Any, Any]

# How often a call looks whether another with the same id has come to an end.
LOOKS = 2


class QuotaAway(Exception):
    """No answer in time: the message may have arrived, or may still."""


class Refusal(Exception):
    """What the caller is told instead of an answer."""


class Refused(Refusal): ...


class Reused(Refusal): ...


class Dead(Refusal): ...


class InProgress(Refusal): ...


class NotKept(Refusal): ...


@dataclass(frozen=True)
class Answer:
    ask: Ask
    generation: int
    key: str


class Calls:
    """The use cases of the Cache."""

    def __init__(self, cache: CacheModel, bug: Bug | None) -> None:
        self._cache = cache
        self._bug = bug

    def explain(self, ask: Ask) -> Steps:
        if (yield lambda: self._cache.read_request(ask.request_id)) is not None:
            return (yield from self._answer_again(ask))
        generation: Generation | None = yield lambda: self._cache.find_live(ask.key)
        if generation is not None and generation.status == "ready":
            return (yield from self._serve_cached(ask, generation))
        return (yield from self._start_or_join(ask, generation))

    def _serve_cached(self, ask: Ask, generation: Generation) -> Steps:
        admission: Admission = yield _admit(ask, "cached", generation.generation_id)
        _require_admitted(admission)
        if admission.decision == "replayed":
            blind = self._bug is Bug.HIT_ANSWERS_FOR_ITS_TWIN
            if admission.outcome != "cached" and not blind:
                # The charge belongs to the intent of a twin: that is where the answer is.
                return (yield from self._answer_again(ask))
            return (yield from self._answer_from_ledger(ask, admission, generation))
        return _answer(ask, generation)

    def _start_or_join(self, ask: Ask, live: Generation | None) -> Steps:
        outcome = "joined" if live else "generated"
        wanted = live.generation_id if live else None
        if self._bug is Bug.R2_CHARGE_BEFORE_INTENT:
            _require_admitted((yield _admit(ask, outcome, wanted)))
        request = yield lambda: self._cache.open_intent(ask, outcome, wanted)
        if request is None:
            return (yield from self._answer_again(ask))
        try:
            return (yield from self._charge_and_attach(ask, request))
        except (Refused, Reused, Dead):
            yield lambda: self._cache.drop_intent(request.request_id, request.nonce)
            raise

    def _charge_and_attach(self, ask: Ask, request: Request) -> Steps:
        admission: Admission = yield from self._charge(ask, request)
        if admission.outcome == "cached":
            yield lambda: self._cache.drop_intent(request.request_id, request.nonce)
            return (yield from self._answer_from_ledger(ask, admission, None))
        attached = yield from self._attach(request, admission.units)
        if attached is None:
            return (yield from self._answer_again(ask, may_take_over=False))
        if attached.refund is not None:
            yield from self._settle_now(attached.refund)
        return _answer(ask, attached.generation)

    def _charge(self, ask: Ask, request: Request) -> Steps:
        try:
            admission: Admission = yield _admit(ask, request.outcome, request.generation)
        except QuotaAway:
            if self._bug is Bug.R12_FAIL_OPEN:
                return Admission("admitted", 0, request.outcome, request.generation)
            yield lambda: self._cache.give_up_intent(request.request_id, request.nonce)
            raise
        _require_admitted(admission)
        return admission

    def _attach(self, request: Request, units: int) -> Steps:
        if self._bug is not Bug.R7_ATTACH_IN_TWO_STEPS:
            return (yield lambda: self._cache.attach(request.request_id, request.nonce, units))
        found, created = yield lambda: self._cache.find_or_create(request)

        def write_later() -> Attached | None:
            now = self._cache.read_request(request.request_id)
            if now is None or (now.state, now.nonce) != ("intent", request.nonce):
                return None
            return self._cache.write_waiter(now, found, created=created, units=units)

        return (yield write_later)

    def _settle_now(self, refund: Refund) -> Steps:
        with suppress(QuotaAway):
            yield (refund,)
            yield lambda: self._cache.delete_refunds([refund])

    def _answer_again(self, ask: Ask, *, may_take_over: bool = True) -> Steps:
        for _ in range(LOOKS):
            request: Request | None = yield lambda: self._cache.read_request(ask.request_id)
            if request is None:
                break
            if not request.is_for(ask) and self._bug is not Bug.R1_ID_MAY_CHANGE_ITS_MEANING:
                raise Reused
            if request.state != "intent":
                return (yield from self._replay(ask, request))
            if may_take_over:
                taken = yield lambda: self._cache.take_over_intent(ask.request_id)
                if taken is not None:
                    return (yield from self._go_on_with(ask, taken))
        raise InProgress

    def _go_on_with(self, ask: Ask, taken: Request) -> Steps:
        try:
            return (yield from self._charge_and_attach(ask, taken))
        except (Refused, Reused, Dead):
            yield lambda: self._cache.give_up_intent(taken.request_id, taken.nonce)
            raise

    def _replay(self, ask: Ask, request: Request) -> Steps:
        if request.state == "aborted":
            return (yield from self._answer_aborted(ask, request))
        found = request.generation
        generation = yield lambda: self._cache.read_generation(found or 0)
        if generation is None:
            raise Dead
        with suppress(QuotaAway):  # what is paid for can be read while Quota is away
            yield _admit(ask, request.outcome, request.generation)
        return _answer(ask, generation)

    def _answer_aborted(self, ask: Ask, request: Request) -> Steps:
        """Given up, but a twin may have been served as a hit with the same id: the ledger knows."""
        if self._bug is Bug.ABORTED_HIDES_A_HIT:
            raise Dead
        admission: Admission = yield _admit(ask, request.outcome, request.generation)
        if admission.outcome != "cached":
            raise Dead  # a charge that landed just now is undone: its refund is in the outbox
        return (yield from self._answer_from_ledger(ask, admission, None))

    def _answer_from_ledger(
        self, ask: Ask, admission: Admission, current: Generation | None
    ) -> Steps:
        paid = admission.generation
        generation = None
        if paid is not None:
            generation = yield lambda: self._cache.read_generation(paid)
        generation = generation or current
        if generation is None:
            raise NotKept
        return _answer(ask, generation)

    def sweep(self, *, late: bool) -> Steps:
        """One pass; `late` says that waiting jobs have waited too long."""
        yield from self._end((yield self._cache.find_spent))
        if late:
            yield from self._end((yield self._cache.find_overdue))
        yield self._cache.abort_stale_intents

    def _end(self, leases: Sequence[Lease]) -> Steps:
        for lease in leases:
            yield partial(self._cache.end_abandoned_job, lease)

    def relay(self) -> Steps:
        refunds: Refunds = yield self._cache.read_refunds
        if not refunds:
            return
        if self._bug is Bug.REFUND_LOST:
            yield lambda: self._cache.delete_refunds(refunds)
        yield refunds
        yield lambda: self._cache.delete_refunds(refunds)

    def complete(self, lease: Lease) -> Steps:
        ended = yield lambda: self._cache.complete_job(lease)
        if ended and self._bug is Bug.R8_SETTLE_IN_TWO_STEPS:
            yield lambda: self._cache.serve_waiters(lease.generation_id)

    def fail(self, lease: Lease, *, permanent: bool) -> Steps:
        ended = yield lambda: self._cache.fail_job(lease, permanent=permanent)
        if ended and self._bug is Bug.R8_SETTLE_IN_TWO_STEPS:
            yield lambda: self._cache.fail_waiters(lease.generation_id)


def _admit(ask: Ask, outcome: str, generation: int | None) -> Admit:
    return Admit(ask.request_id, ask.user, ask.key, outcome, generation)


def _require_admitted(admission: Admission) -> None:
    errors = {"refused": Refused, "reused": Reused, "dead": Dead}
    if admission.decision in errors:
        raise errors[admission.decision]


def _answer(ask: Ask, generation: Generation) -> Answer:
    return Answer(ask, generation.generation_id, generation.key)
