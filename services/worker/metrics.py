"""What the Worker exports to Prometheus; label values come from closed sets."""

from prometheus_client import Counter, Gauge, Histogram

from services.runtime.metrics import from_zero
from services.worker.dead_letter import Redrive
from services.worker.domain import DOCUMENT_MARKDOWN, Job, Usage
from services.worker.model import ModelError

ATTEMPT_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 300)
GENERATION_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 300)
MODEL_CALL_BUCKETS = (0.05, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120)
MODEL_KINDS = ("offline", "openai")
NANODOLLARS = 1_000_000_000
# Of a generation's size: few enough to be labels.
IMAGES_COUNTS = ("0", "1-3", "4+")
CHUNKS_COUNTS = ("1", "2-4", "5+")

ATTEMPTS = from_zero(
    Counter(
        "glossa_worker_attempts_total", "Attempts, by what the Cache said to them.", ["result"]
    ),
    (
        "ready",
        "retrying",
        "failed",
        "given_back",
        "lease_lost",
        "undelivered",
        "cancelled",
    ),
)
ATTEMPT_CLASSES = from_zero(
    Counter(
        "glossa_worker_attempt_classes_total",
        "Attempts, by what they came to: ok; a transient or permanent failure; timeout, beyond the"
        " attempt's deadline; untouched, given back as it was; crash, a fault of ours.",
        ["class"],
    ),
    ("ok", "transient", "permanent", "timeout", "untouched", "crash"),
)
ATTEMPT_SECONDS = Histogram(
    "glossa_worker_attempt_seconds",
    "How long attempts took, from lease to verdict.",
    buckets=ATTEMPT_BUCKETS,
)
RUNNING_ATTEMPTS = Gauge("glossa_worker_running_attempts", "Attempts under way.")
GENERATION_SECONDS = Histogram(
    "glossa_worker_generation_seconds",
    "How long attempts that made a result took, by the size of what they explained.",
    ["mode", "images", "chunks"],
    buckets=GENERATION_BUCKETS,
)
from_zero(GENERATION_SECONDS, ["text_only"], ["0"], CHUNKS_COUNTS)
from_zero(GENERATION_SECONDS, ["with_images"], ["1-3", "4+"], CHUNKS_COUNTS)
from_zero(GENERATION_SECONDS, ["document"], IMAGES_COUNTS, ["1"])
WATCHERS = Gauge("glossa_worker_watchers", "Open WatchGeneration streams.")
FOLLOWED = Gauge(
    "glossa_worker_followed_generations", "Generations that at least one stream watches."
)
HEARTBEATS = Counter(
    "glossa_worker_heartbeats_total", "Renewals, each of all running leases together."
)
HEARTBEAT_FAILURES = Counter(
    "glossa_worker_heartbeat_failures_total", "Renewals that the Cache did not answer."
)
LEASES_LOST = Counter(
    "glossa_worker_leases_lost_total", "Leases that another attempt took over or that ended."
)
OPERATIONS_LOST = from_zero(
    Counter(
        "glossa_worker_operations_lost_total",
        "Model calls whose cost Quota does not know, by why it was not told.",
        ["why"],
    ),
    ("refused", "overflow", "stopped"),
)


def _reasons(error: type[ModelError]) -> set[str]:
    return {error.reason.lower()}.union(*map(_reasons, error.__subclasses__()))


MODEL_CALLS = from_zero(
    Counter(
        "glossa_worker_model_calls_total",
        "Calls to the explainer by its kind and result: ok, cancelled or the reason of the error.",
        ["model_kind", "result"],
    ),
    MODEL_KINDS,
    ("ok", "cancelled", "error", *sorted(_reasons(ModelError))),
)
MODEL_CALL_SECONDS = from_zero(
    Histogram(
        "glossa_worker_model_call_seconds",
        "How long calls to the explainer took, whatever came of them.",
        ["model_kind"],
        buckets=MODEL_CALL_BUCKETS,
    ),
    MODEL_KINDS,
)
MODEL_TOKENS = from_zero(
    Counter(
        "glossa_worker_model_tokens_total",
        "Tokens that calls took; cached ones are not among the input.",
        ["kind"],
    ),
    ("input", "cached_input", "output"),
)
MODEL_COST_DOLLARS = Counter(
    "glossa_worker_model_cost_dollars_total",
    "What calls have cost, as Quota priced them when they were recorded.",
)
MODEL_CALL_LIMIT = Gauge(
    "glossa_worker_model_call_limit", "How many calls to the model may be under way at a time."
)
MODEL_CALLS_UNDER_WAY = Gauge(
    "glossa_worker_model_calls_under_way", "Calls to the model that wait for its answer."
)
MODEL_CALLS_WAITING = Gauge(
    "glossa_worker_model_calls_waiting", "Calls to the model that wait for their turn."
)
MODEL_RESUMES_AT = Gauge(
    "glossa_worker_model_resumes_timestamp_seconds",
    "Until when the model asked us to wait; in the past while it does not.",
)
MODEL_QUOTA_EXHAUSTED = Gauge(
    "glossa_worker_model_quota_exhausted", "1 while the account at the model is used up."
)
IMAGES = from_zero(
    Counter("glossa_worker_images_total", "Pictures, by how they were understood.", ["result"]),
    ("known", "described", "undescribed"),
)
CHUNKS_RESUMED = Counter(
    "glossa_worker_chunks_resumed_total", "Chunks that an earlier attempt had explained already."
)
DEAD_LETTERS = Counter("glossa_worker_dead_letters_total", "Generations that failed for good.")
REDRIVEN = from_zero(
    Counter(
        "glossa_worker_dead_letters_redriven_total",
        "Dead letters, by what a redrive came to.",
        ["verdict"],
    ),
    tuple(Redrive),
)
SAMPLES = Counter("glossa_worker_samples_total", "Latency samples recorded.")
HOURS_ROLLED_UP = Counter("glossa_worker_roll_ups_total", "Hours of metrics summed up.")
SLOW_READERS = Counter(
    "glossa_worker_slow_readers_total", "Watchers cut because they did not take a message in time."
)


def count_generation(job: Job, *, chunks: int, seconds: float) -> None:
    """An attempt has made a result."""
    mode = "document" if job.kind == DOCUMENT_MARKDOWN else job.effective_mode
    images = IMAGES_COUNTS[(job.images_count > 0) + (job.images_count > 3)]
    size = "1" if mode == "document" else CHUNKS_COUNTS[(chunks > 1) + (chunks > 4)]
    GENERATION_SECONDS.labels(mode, images, size).observe(seconds)


def count_tokens(usage: Usage) -> None:
    cached = min(usage.cached_tokens, usage.input_tokens)  # whatever the provider says
    MODEL_TOKENS.labels("input").inc(usage.input_tokens - cached)
    MODEL_TOKENS.labels("cached_input").inc(cached)
    MODEL_TOKENS.labels("output").inc(usage.output_tokens)
