"""What the Registry exports to Prometheus: uploads, and how PDFs treat their readers."""

from prometheus_client import Counter, Gauge, Histogram

from services.registry.domain import Note, Problem
from services.registry.errors import BY_REASON, PdfReaderLost
from services.runtime.metrics import from_zero

ACTS = ("inspect", "describe", "read")

uploads = from_zero(
    Counter(
        "glossa_registry_uploads_total",
        "Uploads that ended well, by what they meant for their owner.",
        ["note"],
    ),
    [note.value for note in Note],
)
uploaded_bytes = Counter("glossa_registry_uploaded_bytes_total", "Bytes received in uploads.")
pdf_tasks = from_zero(
    Counter(
        "glossa_registry_pdf_tasks_total",
        "Tasks given to PDF children: done, or the reason of the refusal.",
        ["act", "result"],
    ),
    ACTS,
    ("done", *BY_REASON, PdfReaderLost().reason),
)
pdf_task_seconds = from_zero(
    Histogram(
        "glossa_registry_pdf_task_seconds",
        "How long PDF tasks took, waiting for a free child included.",
        ["act"],
        buckets=(0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    ),
    ACTS,
)
revocation_watchers = Gauge(
    "glossa_registry_revocation_watchers", "Streams that are told about lost references."
)
pdf_children_killed = from_zero(
    Counter(
        "glossa_registry_pdf_children_killed_total",
        "PDF children that ended in the middle of a task, by what ended them.",
        ["by"],
    ),
    (
        "wall_clock",
        "computing_time",
        "answer_too_long",
        "nonsense",
        "crash",
        "exit",
        "somebody_else",
    ),
)
collected_documents = Counter(
    "glossa_registry_collected_documents_total", "Documents removed because nobody held them."
)
processed_documents = Counter(
    "glossa_registry_processed_documents_total", "Documents whose pages have been looked at."
)
put_off_documents = Counter(
    "glossa_registry_put_off_documents_total",
    "Times that looking at a document was put off because the object store was away.",
)
callbacks = from_zero(
    Counter(
        "glossa_registry_callbacks_total",
        "Attempts to tell that a file has been processed, by what came of them.",
        ["result"],
    ),
    ("delivered", "retried", "given_up"),
)
reference_drift = from_zero(
    Gauge(
        "glossa_registry_reference_health_findings",
        "What the last health check of this process that looked for it found and left, by problem.",
        ["problem"],
    ),
    [problem.value for problem in Problem],
)
