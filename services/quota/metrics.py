"""What Quota exports to Prometheus; label values come from closed sets."""

from prometheus_client import Counter, Gauge

DECISIONS = Counter(
    "glossa_quota_decisions_total", "Requests by what was decided about them.", ["decision"]
)
SHADOW_DECISIONS = Counter(
    "glossa_quota_shadow_decisions_total",
    "Requests that passed in shadow mode, by what a limit would have decided.",
    ["decision"],
)
WAITING_CALLS = Gauge("glossa_quota_waiting_calls", "Calls that wait for the database.")
CIRCUIT_OPEN = Gauge(
    "glossa_quota_circuit_open", "1 while calls are refused because the database does not answer."
)
REFUSED_CALLS = Counter(
    "glossa_quota_refused_calls_total",
    'Calls refused to spare the database: "slow", "open" or "overloaded".',
    ["why"],
)
