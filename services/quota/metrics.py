"""What Quota exports to Prometheus; label values come from closed sets."""

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import Counter, Gauge

from services.quota.domain import Answer, Decision, Refund, RefundReason, Settled
from services.runtime.metrics import from_zero

BLOCKING_TIERS = ("hard", "daily")

DECISIONS = from_zero(
    Counter(
        "glossa_quota_decisions_total", "Requests by what was decided about them.", ["decision"]
    ),
    tuple(Decision),
)
# Found once: a batch is decided in about a millisecond.
DECIDED = {str(decision): DECISIONS.labels(decision) for decision in Decision}
SHADOW_DECISIONS = from_zero(
    Counter(
        "glossa_quota_shadow_decisions_total",
        "Requests that passed in shadow mode, by what a limit would have decided.",
        ["decision"],
    ),
    tuple(Decision),
)
WINDOW_REFUSALS = from_zero(
    Counter(
        "glossa_quota_window_refusals_total",
        "Requests refused because a window was full, by the window that opens last.",
        ["tier"],
    ),
    BLOCKING_TIERS,
)
REFUNDS = from_zero(
    Counter(
        "glossa_quota_refunds_total",
        "Charges that were given back, in part if they were repriced, by reason.",
        ["reason"],
    ),
    tuple(RefundReason),
)
VOIDS = Counter(
    "glossa_quota_voided_charges_total", "Refunds that came before their charge, and voided it."
)
SPENT_TODAY_DOLLARS = Gauge(
    "glossa_quota_spent_today_dollars", "What model calls have cost since midnight UTC."
)
DAILY_CEILING_DOLLARS = Gauge(
    "glossa_quota_daily_ceiling_dollars",
    "What model calls may cost in a day; 0 where there is no ceiling.",
)
WAITING_CALLS = Gauge("glossa_quota_waiting_calls", "Calls that wait for the database.")
CIRCUIT_OPEN = Gauge(
    "glossa_quota_circuit_open", "1 while calls are refused because the database does not answer."
)
REFUSED_CALLS = from_zero(
    Counter(
        "glossa_quota_refused_calls_total",
        "Calls refused to spare a database that is slow or away.",
        ["why"],
    ),
    ("slow", "open", "overloaded"),
)


def count_answers(answers: Sequence[Answer]) -> None:
    for decision, times in Tally(answer.decision for answer in answers).items():
        DECIDED[decision].inc(times)
        if decision == Decision.RATE_LIMITED:
            _count_full_windows(answers)
    for shadow_decision, times in Tally(answer.shadow_decision for answer in answers).items():
        if shadow_decision is not None:
            SHADOW_DECISIONS.labels(shadow_decision).inc(times)


def _count_full_windows(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if answer.decision == Decision.RATE_LIMITED:
            full = {limit.tier for limit in answer.limits if limit.remaining == 0}
            WINDOW_REFUSALS.labels("daily" if "daily" in full else "hard").inc()


def count_refunds(pairs: Sequence[tuple[Refund, Settled]]) -> None:
    """Those that are settled now; a refund that comes again is none."""
    for refund, settled in pairs:
        if settled.result in ("refunded", "repriced"):
            REFUNDS.labels(refund.reason).inc()
        elif settled.result == "voided":
            VOIDS.inc()
