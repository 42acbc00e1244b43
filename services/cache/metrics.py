"""What the Cache exports to Prometheus; label values come from closed sets."""

from prometheus_client import Counter, Gauge, Histogram

from services.cache.domain import Lane, Outcome
from services.runtime.metrics import from_zero

LANES = {lane: lane.name.lower() for lane in Lane}
# From a push within milliseconds to the hour after which nobody waits any longer.
WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600)
# What callers of ExplainPage and ConvertDocument may be told; anything else is "other".
REFUSALS = (
    "rate_limited",
    "quota_exhausted",
    "budget_exhausted",
    "spending_ceiling",
    "request_id_reused",
    "request_id_dead",
    "request_in_progress",
    "generation_not_found",
    "document_not_found",
    "file_not_found",
    "page_out_of_range",
    "invalid_argument",
    "database_unavailable",
    "registry_unavailable",
    "quota_unavailable",
    "overloaded",
    "other",
)

ANSWERS = from_zero(
    Counter(
        "glossa_cache_answers_total",
        "Explanations and conversions asked for, by how they were served.",
        ["outcome"],
    ),
    tuple(Outcome),
)
# Found once: a hit from memory takes less than a millisecond in all.
ANSWERED = {outcome: ANSWERS.labels(outcome) for outcome in Outcome}
REFUSED = from_zero(
    Counter(
        "glossa_cache_refusals_total",
        "Explanations and conversions that were refused, by reason.",
        ["reason"],
    ),
    REFUSALS,
)

QUEUE_JOBS = from_zero(
    Gauge(
        "glossa_cache_queue_jobs",
        "Generations under way, counted up to 100,000: waiting for a worker, leased to one, stale"
        " (their lease ran out and nobody has taken them up), or waiting for their next attempt.",
        ["lane", "state"],
    ),
    LANES.values(),
    ("waiting", "leased", "stale", "backoff"),
)
QUEUE_OLDEST_SECONDS = from_zero(
    Gauge(
        "glossa_cache_queue_oldest_seconds",
        "How long the oldest job that waits for a worker has waited, by lane it is served from.",
        ["lane"],
    ),
    LANES.values(),
)
LEASE_STREAMS = Gauge("glossa_cache_lease_streams", "Workers that are connected to take jobs.")
LEASE_WAIT_SECONDS = from_zero(
    Histogram(
        "glossa_cache_lease_wait_seconds",
        "How long jobs waited until a worker had them, from when they were due.",
        ["lane"],
        buckets=WAIT_BUCKETS,
    ),
    LANES.values(),
)
LEASE_WAITS = {lane: LEASE_WAIT_SECONDS.labels(name) for lane, name in LANES.items()}
LEASE_RENEWALS = Counter("glossa_cache_lease_renewals_total", "Leases that were renewed.")
LEASES_LOST = from_zero(
    Counter(
        "glossa_cache_leases_lost_total", "Calls of late workers that changed nothing.", ["call"]
    ),
    ("renew", "complete", "fail", "release"),
)
LOCK_FAILURES = from_zero(
    Counter(
        "glossa_cache_lock_failures_total",
        "Leases and places among the waiters that could not be taken: the database was in trouble.",
        ["what"],
    ),
    ("lease", "attach"),
)

OUTBOX_REFUNDS = Gauge(
    "glossa_cache_outbox_refunds", "Refunds that are due and not delivered, up to 100,000."
)
OUTBOX_OLDEST_SECONDS = Gauge(
    "glossa_cache_outbox_oldest_seconds", "How long the oldest refund in the outbox has been due."
)

SWEPT = from_zero(
    Counter("glossa_cache_swept_total", "What the sweep put right or cleared away.", ["what"]),
    (
        "attempts_spent",
        "queue_timeout",
        "intent",
        "old_request",
        "old_generation",
        "expired_response",
    ),
)
SWEEPS = from_zero(
    Counter(
        "glossa_cache_sweeps_total",
        "Sweeps that came to their end, here or left to a leader.",
        ["by"],
    ),
    ("us", "another"),
)
SAMPLES_LOST = from_zero(
    Counter(
        "glossa_cache_samples_lost_total",
        "Requests whose latency the Worker does not know, by why it was not told.",
        ["why"],
    ),
    ("overflow", "refused", "stopped"),
)


def count_refusal(reason: str) -> None:
    name = reason.lower()
    REFUSED.labels(name if name in REFUSALS else "other").inc()
