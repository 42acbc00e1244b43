"""Quota's refusals as the errors that callers of the Cache can act on."""

from collections.abc import Mapping
from datetime import timedelta

from services.cache.clients import Admission, Decision, Limits
from services.cache.domain import Ask, RequestIdDead, RequestIdReused
from services.runtime.errors import LimitReached


class Refused(LimitReached):
    """Quota said no, and wrote nothing down; `limits` tell how the windows stand."""

    def __init__(
        self,
        message: str,
        *,
        limits: Limits,
        retry_after: timedelta | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, retry_after=retry_after, metadata=metadata)
        self.limits = limits


class RateLimited(Refused):
    """A window of this user is full."""

    reason = "RATE_LIMITED"


class QuotaExhausted(Refused):
    """This user has no units left in this period."""

    reason = "QUOTA_EXHAUSTED"


class BudgetExhausted(Refused):
    """This user's monthly budget is spent."""

    reason = "BUDGET_EXHAUSTED"


class SpendingCeiling(Refused):
    """No more may be spent today, or on this document."""

    reason = "SPENDING_CEILING"


_YES = frozenset({Decision.ADMITTED, Decision.REPLAYED})


class PreferenceChanged(Exception):
    """Nothing was charged: the user wants the other scope than the one we looked in."""

    def __init__(self, *, shares: bool) -> None:
        super().__init__()
        self.shares = shares


def require_admitted(ask: Ask, admission: Admission) -> None:
    """Raise Quota's refusal, if it is one."""
    if admission.decision in _YES:
        return
    limits = admission.limits
    remaining = {f"{limit.tier}_remaining": f"{limit.remaining}/{limit.limit}" for limit in limits}
    match admission.decision:
        case Decision.RATE_LIMITED:
            raise RateLimited(
                "too many requests; wait and try again",
                limits=limits,
                retry_after=admission.retry_after,
                metadata=remaining,
            )
        case Decision.QUOTA_EXHAUSTED:
            error = QuotaExhausted(
                "no units left in this period", limits=limits, metadata=remaining
            )
            error.spent_quota = f"user:{ask.user_id}"
            raise error
        case Decision.BUDGET_EXHAUSTED:
            spent = BudgetExhausted(
                "this month's budget is spent; raise it or wait for the next month",
                limits=limits,
                metadata=remaining,
            )
            spent.spent_quota = f"user:{ask.user_id}"
            raise spent
        case Decision.SPENDING_CEILING:
            raise SpendingCeiling(
                "new explanations are paused: a spending ceiling is reached",
                limits=limits,
                retry_after=admission.retry_after,
                metadata=remaining,
            )
        case Decision.PREFERENCE_CHANGED:
            raise PreferenceChanged(shares=admission.shares)
        case Decision.REQUEST_ID_REUSED:
            raise reused()
        case Decision.REQUEST_ID_DEAD:
            raise dead()


def reused() -> RequestIdReused:
    return RequestIdReused(
        "request_id was used with other parameters; use a new one", field="request_id"
    )


def dead() -> RequestIdDead:
    return RequestIdDead(
        "this request was given up and refunded; use a new request_id", field="request_id"
    )
