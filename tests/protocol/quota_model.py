"""Quota as the protocol sees it: balances, a ledger row per request_id, append-only entries."""

from collections import Counter
from dataclasses import dataclass, replace

from tests.protocol.bugs import Bug

PRICES = {"generated": 1, "cached": 1, "joined": 0}
UNITS = 6


@dataclass(frozen=True)
class Admit:
    """Cache → Quota: charge this, once."""

    request_id: int
    user: str
    key: str
    outcome: str
    generation: int | None


@dataclass(frozen=True)
class Admission:
    """Quota → Cache; `outcome` and `generation` are those of the charge that stands."""

    decision: str  # admitted, replayed, refused, reused, dead
    units: int = 0
    outcome: str | None = None
    generation: int | None = None


@dataclass(frozen=True)
class Refund:
    """Cache → Quota: a message of the outbox."""

    outbox_id: int
    request_id: int
    user: str
    reason: str  # generation_failed, request_aborted, repriced
    served_as: str | None = None
    generation: int | None = None


@dataclass(frozen=True)
class Charge:
    """A row of the ledger; a void has no key."""

    user: str
    key: str | None
    outcome: str | None
    generation: int | None
    units: int
    status: str  # charged, refunded, void


@dataclass(frozen=True)
class Entry:
    user: str
    request_id: int
    kind: str  # charge, refund, reprice
    units: int


class QuotaModel:
    """Every public method is one transaction of the real Quota."""

    def __init__(self, bug: Bug | None, users: tuple[str, ...]) -> None:
        self._bug = bug
        self.balances = dict.fromkeys(users, UNITS)
        self.ledger: dict[int, Charge] = {}
        self.entries: list[Entry] = []

    def admit(self, asked: Admit, *, full: bool) -> Admission:
        """One decision; `full` says that a window of the user has no room."""
        charge = self.ledger.get(asked.request_id)
        if charge is not None and not self._forgets(charge):
            return self._answer_again(asked, charge)
        units = PRICES[asked.outcome]
        if full or self.balances[asked.user] < units:
            return Admission("refused")
        self.ledger[asked.request_id] = Charge(
            asked.user, asked.key, asked.outcome, asked.generation, units, "charged"
        )
        self._book(asked.user, asked.request_id, "charge", -units)
        return Admission("admitted", units, asked.outcome, asked.generation)

    def refund_many(self, refunds: tuple[Refund, ...]) -> None:
        for refund in refunds:
            self._settle(refund)

    def entries_of(self, request_id: int) -> Counter[str]:
        return Counter(entry.kind for entry in self.entries if entry.request_id == request_id)

    def _forgets(self, charge: Charge) -> bool:
        if charge.status == "charged":
            return self._bug is Bug.R3_CHARGE_EVERY_TIME
        return self._bug is Bug.R5_DEAD_IDS_REVIVE

    def _answer_again(self, asked: Admit, charge: Charge) -> Admission:
        may_change = self._bug is Bug.R1_ID_MAY_CHANGE_ITS_MEANING
        if charge.user != asked.user and not may_change:
            return Admission("reused")
        if charge.status != "charged":
            return Admission("dead")
        if charge.key != asked.key and not may_change:
            return Admission("reused")
        return Admission("replayed", charge.units, charge.outcome, charge.generation)

    def _settle(self, refund: Refund) -> None:
        charge = self.ledger.get(refund.request_id)
        if charge is None:
            if self._bug is not Bug.R4_NO_TOMBSTONE:
                void = Charge(refund.user, None, None, None, 0, "void")
                self.ledger[refund.request_id] = void
            return
        if not self._is_open(charge, refund):
            return
        units, served = 0, replace(charge, status="refunded")
        if refund.reason == "repriced":
            assert refund.served_as is not None
            units = min(charge.units, PRICES[refund.served_as])
            served = replace(
                charge, outcome=refund.served_as, generation=refund.generation, units=units
            )
        self.ledger[refund.request_id] = served
        kind = "reprice" if refund.reason == "repriced" else "refund"
        self._book(charge.user, refund.request_id, kind, charge.units - units)

    def _is_open(self, charge: Charge, refund: Refund) -> bool:
        if charge.user != refund.user:
            return False
        if charge.status != "charged":
            return self._bug is Bug.REFUND_EVERY_TIME and charge.status == "refunded"
        if refund.reason == "request_aborted":
            return charge.outcome != "cached"
        if refund.reason == "repriced":
            return charge.outcome == "generated"
        return True

    def _book(self, user: str, request_id: int, kind: str, units: int) -> None:
        self.balances[user] += units
        self.entries.append(Entry(user, request_id, kind, units))
