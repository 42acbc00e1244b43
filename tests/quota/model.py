"""The rules of Quota in plain Python, without a thought for speed: what the SQL is held against."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from services.quota.domain import (
    DAY,
    HARD_WINDOW,
    SOFT_WINDOW,
    AdmitRequest,
    Outcome,
    Refund,
    Rules,
    Settled,
    Windows,
)


@dataclass
class Account:
    """What is known about one user."""

    period_ends_at: datetime
    balance: int = 0
    shares: bool = True
    admissions: list[tuple[datetime, str]] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)

    def move(self, units: int) -> None:
        self.balance += units
        self.entries.append(units)


@dataclass
class Charge:
    """What is known about one request_id; a void has no request."""

    user: str
    request: AdmitRequest | None = None
    outcome: str | None = None
    generation_id: UUID | None = None
    units: int = 0
    status: str = "charged"
    shares: bool = True


@dataclass
class Told:
    """What a request is answered."""

    decision: str
    units: int
    remaining_units: int
    share_to_cache: bool
    windows: Windows
    retry_after: timedelta | None = None
    outcome: str | None = None
    generation_id: UUID | None = None
    shadow_decision: str | None = None


class Model:
    """Accounts and charges as they should be."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.accounts: dict[str, Account] = {}
        self.charges: dict[UUID, Charge] = {}
        self.resets: set[UUID] = set()

    def admit(self, request: AdmitRequest, now: datetime) -> Told:
        account = self.open(request.user_id, now)
        charge = self.charges.get(request.request_id)
        if charge is not None:
            return self._again(account, request, charge, now)
        if request.expected_share_to_cache not in (None, account.shares):
            return self._told("preference_changed", account, request, now)
        wait = self._wait(account, request.endpoint, now)
        shadowed = "rate_limited" if wait is not None and self.rules.shadow else None
        if wait is not None and not shadowed:
            return self._told("rate_limited", account, request, now, retry_after=wait)
        units = self._price(request.outcome, account.shares)
        if account.balance < units:
            return self._told("quota_exhausted", account, request, now, shadow_decision=shadowed)
        account.move(-units)
        account.admissions.append((now, request.endpoint))
        self.charges[request.request_id] = Charge(
            user=request.user_id,
            request=request,
            outcome=request.outcome,
            generation_id=request.generation_id,
            units=units,
            shares=account.shares,
        )
        return self._told("admitted", account, request, now, units=units, shadow_decision=shadowed)

    def settle(self, refund: Refund, now: datetime) -> Settled:
        account = self.open(refund.user_id, now)
        charge = self.charges.get(refund.request_id)
        if charge is None:
            self.charges[refund.request_id] = Charge(user=refund.user_id, status="void")
            account.move(0)
            return Settled("voided", 0, account.balance)
        result = "already_settled"
        if charge.user == refund.user_id and charge.status == "charged":
            result = self._give_back(account, charge, refund)
        units = charge.units if charge.status == "charged" else 0
        return Settled(result, units, account.balance)

    def reset(self, user: str, reset_id: UUID, clear_windows: bool, now: datetime) -> int:
        account = self.open(user, now)
        if reset_id not in self.resets:
            self.resets.add(reset_id)
            account.move(self.rules.units[self.rules.first_plan] - account.balance)
            if clear_windows:
                account.admissions.clear()
        return account.balance

    def open(self, user: str, now: datetime) -> Account:
        """The user's account in the period that `now` lies in."""
        account = self.accounts.setdefault(user, Account(period_ends_at=now))
        if now >= account.period_ends_at:
            if account.balance:
                account.move(-account.balance)
            account.move(self.rules.units[self.rules.first_plan])
            while now >= account.period_ends_at:
                account.period_ends_at += self.rules.period
        return account

    def windows(self, account: Account, endpoint: str, now: datetime) -> Windows:
        soft = self._inside(account, now - SOFT_WINDOW, endpoint)
        hard = self._inside(account, now - HARD_WINDOW, endpoint)
        daily = self._inside(account, now - DAY)
        return Windows(len(soft), _first(soft), len(hard), _first(hard), len(daily), _first(daily))

    def _again(
        self, account: Account, request: AdmitRequest, charge: Charge, now: datetime
    ) -> Told:
        if charge.user != request.user_id:
            return self._told("request_id_reused", account, request, now)
        if charge.status != "charged":
            return self._told("request_id_dead", account, request, now)
        assert charge.request is not None
        if _bought(charge.request) != _bought(request):
            return self._told("request_id_reused", account, request, now)
        told = self._told("replayed", account, request, now, units=charge.units)
        told.outcome, told.generation_id = charge.outcome, charge.generation_id
        return told

    def _give_back(self, account: Account, charge: Charge, refund: Refund) -> str:
        if refund.reason == "request_aborted" and charge.outcome == "cached":
            return "already_settled"
        if refund.reason != "repriced":
            charge.status = "refunded"
            account.move(charge.units)
            return "refunded"
        if charge.outcome != "generated" or refund.served_as == "generated":
            return "already_settled"
        assert refund.served_as is not None
        price = min(charge.units, self._price(refund.served_as, charge.shares))
        account.move(charge.units - price)
        charge.units, charge.outcome = price, refund.served_as
        charge.generation_id = refund.generation_id or charge.generation_id
        return "repriced"

    def _price(self, outcome: str, shares: bool) -> int:
        units = self.rules.prices[Outcome(outcome)]
        return units if shares or units else self.rules.prices[Outcome.GENERATED]

    def _wait(self, account: Account, endpoint: str, now: datetime) -> timedelta | None:
        """None when there is room; else how long until both windows have some."""
        limits = self.rules.limits[self.rules.first_plan, endpoint]
        hard = self._inside(account, now - HARD_WINDOW, endpoint)
        daily = self._inside(account, now - DAY)
        leaves = []
        if len(hard) >= limits.hard:
            leaves.append(hard[-limits.hard] + HARD_WINDOW)
        if len(daily) >= limits.daily:
            leaves.append(daily[-limits.daily] + DAY)
        return max(leaves) - now if leaves else None

    def _inside(
        self, account: Account, after: datetime, endpoint: str | None = None
    ) -> list[datetime]:
        return [at for at, asked in account.admissions if at > after and endpoint in (None, asked)]

    def _told(
        self,
        decision: str,
        account: Account,
        request: AdmitRequest,
        now: datetime,
        *,
        units: int = 0,
        retry_after: timedelta | None = None,
        shadow_decision: str | None = None,
    ) -> Told:
        return Told(
            decision=decision,
            units=units,
            remaining_units=account.balance,
            share_to_cache=account.shares,
            windows=self.windows(account, request.endpoint, now),
            retry_after=retry_after,
            shadow_decision=shadow_decision,
        )


def _first(times: list[datetime]) -> datetime | None:
    return times[0] if times else None


def _bought(request: AdmitRequest) -> tuple[object, ...]:
    """What must be the same when a request_id comes again."""
    return (
        request.endpoint,
        request.pdf_hash,
        request.page,
        request.locale,
        request.effective_mode,
    )
