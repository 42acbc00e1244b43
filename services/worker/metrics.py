"""What the Worker exports to Prometheus; label values come from closed sets."""

from prometheus_client import Counter, Gauge, Histogram

ATTEMPT_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 300)

ATTEMPTS = Counter(
    "glossa_worker_attempts_total",
    "Attempts by how they ended: ready, retrying, failed, given_back, lease_lost, undelivered,"
    " cancelled.",
    ["result"],
)
ATTEMPT_SECONDS = Histogram(
    "glossa_worker_attempt_seconds",
    "How long attempts took, from lease to verdict.",
    buckets=ATTEMPT_BUCKETS,
)
WATCHERS = Gauge("glossa_worker_watchers", "Open WatchGeneration streams.")
FOLLOWED = Gauge(
    "glossa_worker_followed_generations", "Generations that at least one stream watches."
)
LEASES_LOST = Counter(
    "glossa_worker_leases_lost_total", "Leases that another attempt took over or that ended."
)
OPERATIONS_LOST = Counter(
    "glossa_worker_operations_lost_total",
    'Model calls whose cost Quota does not know: "refused", "overflow" or "stopped".',
    ["why"],
)
MODEL_CALLS = Counter(
    "glossa_worker_model_calls_total",
    'Calls to the explainer by its kind and result: "ok", "cancelled" or the reason of the error.',
    ["model_kind", "result"],
)
MODEL_CALL_LIMIT = Gauge(
    "glossa_worker_model_call_limit", "How many calls to the model may be under way at a time."
)
MODEL_QUOTA_EXHAUSTED = Gauge(
    "glossa_worker_model_quota_exhausted", "1 while the account at the model is used up."
)
IMAGES = Counter(
    "glossa_worker_images_total",
    'Pictures by how they were understood: "known", "described" or "undescribed".',
    ["result"],
)
CHUNKS_RESUMED = Counter(
    "glossa_worker_chunks_resumed_total", "Chunks that an earlier attempt had explained already."
)
LOOP_LAG_SECONDS = Histogram(
    "glossa_worker_loop_lag_seconds",
    "How late the event loop was; heartbeats are as late as that.",
    buckets=(0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 5),
)
DEAD_LETTERS = Counter("glossa_worker_dead_letters_total", "Generations that failed for good.")
REDRIVEN = Counter(
    "glossa_worker_dead_letters_redriven_total",
    "Dead letters by what a redrive came to: started, already_live, gone.",
    ["verdict"],
)
SAMPLES = Counter("glossa_worker_samples_total", "Latency samples recorded.")
HOURS_ROLLED_UP = Counter("glossa_worker_hours_rolled_up_total", "Hours of metrics summed up.")
SLOW_READERS = Counter(
    "glossa_worker_slow_readers_total", "Watchers cut because they did not take a message in time."
)
