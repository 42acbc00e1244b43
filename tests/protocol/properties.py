"""What must hold after every step, and once everything has settled."""

from collections import Counter

from tests.protocol.bugs import must
from tests.protocol.cache_model import Ask, CacheModel, Request
from tests.protocol.calls_model import Answer
from tests.protocol.quota_model import UNITS, Charge, QuotaModel

FINAL = {"generation": ("ready", "failed"), "request": ("served", "failed", "aborted")}


class Properties:
    """Watches the two databases, and what clients were told."""

    def __init__(self, cache: CacheModel, quota: QuotaModel) -> None:
        self._cache = cache
        self._quota = quota
        self.answers: dict[int, Answer] = {}
        self._ended: dict[tuple[str, int], object] = {}
        self._settled_charges: dict[int, str] = {}
        self._forgotten: set[int] = set()

    # What clients see.

    def answered(self, answer: Answer) -> None:
        ask = answer.ask
        must(answer.key == ask.key, "an answer is about what was asked", answer)
        known = self.answers.setdefault(ask.request_id, answer)
        must(known == answer, "the same id is answered alike", known, answer)

    def refused_as_dead(self, ask: Ask, known: Answer | None) -> None:
        """`known` is what the id had been answered before this call began."""
        must(known is None or known.ask != ask, "an answered id does not die", ask)

    def forget(self, request_id: int) -> None:
        """Retention has taken the request away."""
        self._forgotten.add(request_id)

    # After every step.

    def check(self) -> None:
        self._check_generations()
        self._check_requests()
        self._check_ledger()

    def _check_generations(self) -> None:
        live = Counter(
            generation.key for generation in self._cache.generations.values() if generation.is_live
        )
        must(all(number == 1 for number in live.values()), "one live generation per key", live)
        for generation in self._cache.generations.values():
            ended = (generation.status, generation.result, generation.ended_by)
            self._stays("generation", generation.generation_id, generation.status, ended)
            ready = generation.status == "ready"
            must(ready == (generation.result is not None), "ready is having a result", generation)
            must(
                generation.ended_by in (None, generation.attempts),
                "only the newest attempt ends a generation",
                generation,
            )

    def _check_requests(self) -> None:
        for request in self._cache.requests.values():
            final = (request.state, request.generation)
            self._stays("request", request.request_id, request.state, final)
            if request.state in ("waiting", "served", "failed"):
                self._check_attached(request)

    def _check_attached(self, request: Request) -> None:
        generation = self._cache.generations[request.generation or 0]
        must(generation.key == request.key, "a request has the generation it asked for", request)
        fits = {"generating": "waiting", "ready": "served", "failed": "failed"}[generation.status]
        must(fits == request.state, "waiters are settled with their generation", request)
        charge = self._quota.ledger.get(request.request_id)
        must(charge is not None, "whoever waits or was served has been charged", request)
        assert charge is not None
        must(
            (charge.user, charge.key) == (request.user, request.key),
            "both sides know the same payer and parameters",
            request,
            charge,
        )
        if request.state in ("waiting", "served"):
            must(charge.status == "charged", "what was given back is not served", request, charge)

    def _check_ledger(self) -> None:
        for user, balance in self._quota.balances.items():
            moved = sum(entry.units for entry in self._quota.entries if entry.user == user)
            must(balance == UNITS + moved, "a balance is the sum of its entries", user)
            must(balance >= 0, "a balance is never negative", user)
        kinds = Counter((entry.request_id, entry.kind) for entry in self._quota.entries)
        must(all(number == 1 for number in kinds.values()), "each entry once per request", kinds)
        for request_id, charge in self._quota.ledger.items():
            before = self._settled_charges.get(request_id)
            must(before in (None, charge.status), "a settled charge stays settled", request_id)
            if charge.status != "charged":
                self._settled_charges[request_id] = charge.status

    def _stays(self, kind: str, number: int, state: str, whole: object) -> None:
        known = self._ended.get((kind, number), whole)
        must(known == whole, "what has ended stays as it ended", known, whole)
        if state in FINAL[kind]:
            self._ended[kind, number] = whole

    # Once everything is delivered.

    def check_settled(self) -> None:
        self.check()
        must(not self._cache.outbox, "every refund is delivered", self._cache.outbox)
        for request in self._cache.requests.values():
            must(request.state in FINAL["request"], "every request comes to an end", request)
            if request.state in ("failed", "aborted"):
                self._check_given_back(request)
        for request_id, charge in self._quota.ledger.items():
            if charge.status == "charged" and charge.units > 0:
                self._check_bought(request_id, charge)

    def _check_given_back(self, request: Request) -> None:
        charge = self._quota.ledger.get(request.request_id)
        if charge is None or charge.outcome == "cached":
            return  # a hit with the same id bought what was there
        kept = charge.units if charge.status == "charged" else 0
        must(kept == 0, "nobody pays for a failure", request, charge)

    def _check_bought(self, request_id: int, charge: Charge) -> None:
        generation = self._cache.generations.get(charge.generation or 0)
        if charge.outcome == "cached" and generation is not None:
            must(generation.status == "ready", "a hit bought a result", request_id, charge)
            must(generation.key == charge.key, "a hit bought what was asked", request_id, charge)
            return
        if request_id in self._cache.requests:
            state = self._cache.requests[request_id].state
            must(state == "served", "every charge buys a result or comes back", charge, state)
        else:
            forgotten = request_id in self._forgotten  # it was sound when it was forgotten
            must(forgotten, "every charge buys a result or comes back", request_id, charge)
