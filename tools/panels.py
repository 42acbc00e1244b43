"""What the Grafana dashboard shows: rows of graphs, and the query behind each line."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """One graph: a title, a unit as Grafana names it, and queries by legend."""

    title: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"


def rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def quantile(buckets: str, by: str = "", *, q: float = 0.95) -> str:
    return f"histogram_quantile({q}, {rate(buckets, f'{by}, le' if by else 'le')})"


def of_all_services(metric: str) -> str:
    """The metric that every service has under its own name."""
    return f'{{__name__=~"glossa_(registry|cache|quota|worker)_{metric}"}}'


ROWS: dict[str, list[Panel]] = {
    "What users see": [
        Panel(
            "Calls that failed through our fault",
            "percentunit",
            {
                "last 5 minutes": "glossa:user_calls:failed_ratio_5m",
                "last 6 hours": "glossa:user_calls:failed_ratio_6h",
            },
        ),
        Panel(
            "How explanations are served",
            "reqps",
            {"{{outcome}}": rate("glossa_cache_answers_total", "outcome")},
        ),
        Panel(
            "Refusals by reason",
            "reqps",
            {"{{reason}}": f"{rate('glossa_cache_refusals_total', 'reason')} > 0"},
        ),
        Panel(
            "Time of an ExplainPage call",
            "s",
            {
                f"p{round(100 * q)}": quantile(
                    'glossa_cache_request_seconds_bucket{method="ExplainPage"}', q=q
                )
                for q in (0.5, 0.95, 0.99)
            },
        ),
        Panel(
            "Time to a new explanation, p95",
            "s",
            {"{{mode}}": quantile("glossa_worker_generation_seconds_bucket", "mode")},
        ),
        Panel("Uploads", "reqps", {"{{note}}": rate("glossa_registry_uploads_total", "note")}),
        Panel(
            "Windows that were full",
            "reqps",
            {"{{tier}}": rate("glossa_quota_window_refusals_total", "tier")},
        ),
        Panel("Watchers", "short", {"streams": "sum(glossa_worker_watchers)"}),
    ],
    "Queue": [
        Panel(
            "Jobs",
            "short",
            {"{{lane}} {{state}}": "max by (lane, state) (glossa_cache_queue_jobs)"},
        ),
        Panel(
            "Oldest job",
            "s",
            {"{{lane}}": "max by (lane) (glossa_cache_queue_oldest_seconds)"},
        ),
        Panel(
            "Wait for a worker, p95",
            "s",
            {"{{lane}}": quantile("glossa_cache_lease_wait_seconds_bucket", "lane")},
        ),
        Panel(
            "Workers and attempts",
            "short",
            {
                "workers connected": "sum(glossa_cache_lease_streams)",
                "attempts under way": "sum(glossa_worker_running_attempts)",
            },
        ),
        Panel(
            "Attempts by class",
            "reqps",
            {"{{class}}": rate("glossa_worker_attempt_classes_total", "class")},
        ),
        Panel(
            "Heartbeats and locks that failed, in an hour",
            "short",
            {
                "heartbeats": "sum(increase(glossa_worker_heartbeat_failures_total[1h]))",
                "locks": "sum(increase(glossa_cache_lock_failures_total[1h]))",
            },
        ),
        Panel(
            "Late workers refused",
            "reqps",
            {"{{call}}": rate("glossa_cache_leases_lost_total", "call")},
        ),
        Panel(
            "Dead letters in an hour",
            "short",
            {"dead letters": "sum(increase(glossa_worker_dead_letters_total[1h]))"},
        ),
    ],
    "Model and money": [
        Panel(
            "Calls to the model",
            "reqps",
            {"{{result}}": f"{rate('glossa_worker_model_calls_total', 'result')} > 0"},
        ),
        Panel(
            "Time of a call, p95",
            "s",
            {"{{model_kind}}": quantile("glossa_worker_model_call_seconds_bucket", "model_kind")},
        ),
        Panel(
            "Pace",
            "short",
            {
                "allowed": "sum(glossa_worker_model_call_limit)",
                "under way": "sum(glossa_worker_model_calls_under_way)",
                "waiting": "sum(glossa_worker_model_calls_waiting)",
            },
        ),
        Panel(
            "Tokens a second",
            "short",
            {"{{kind}}": rate("glossa_worker_model_tokens_total", "kind")},
        ),
        Panel(
            "Spent today",
            "currencyUSD",
            {
                "spent": "max(glossa_quota_spent_today_dollars)",
                "ceiling": "max(glossa_quota_daily_ceiling_dollars)",
            },
        ),
        Panel(
            "Dollars an hour",
            "currencyUSD",
            {"cost": "3600 * sum(rate(glossa_worker_model_cost_dollars_total[30m]))"},
        ),
        Panel("Refunds", "reqps", {"{{reason}}": rate("glossa_quota_refunds_total", "reason")}),
        Panel(
            "Refunds not delivered",
            "short",
            {
                "refunds": "max(glossa_cache_outbox_refunds)",
                "seconds": "max(glossa_cache_outbox_oldest_seconds)",
            },
        ),
    ],
    "Database and processes": [
        Panel("Services up", "short", {"{{service}}": 'up{job=~"glossa.*"}'}),
        Panel(
            "Connections used",
            "percentunit",
            {
                "{{service}}": "sum by (service) ({__name__=~"
                '"glossa_(registry|cache|quota|worker)_pool_connections", state="used"})'
                f" / sum by (service) ({of_all_services('pool_connections_limit')})"
            },
        ),
        Panel(
            "Wait for a connection, p99",
            "s",
            {
                "{{service}}": quantile(
                    of_all_services("pool_acquire_seconds_bucket"), "service", q=0.99
                )
            },
        ),
        Panel(
            "Event loop late, p99",
            "s",
            {
                "{{service}}": quantile(
                    of_all_services("loop_lag_seconds_bucket"), "service", q=0.99
                )
            },
        ),
        Panel("CPU", "short", {"{{service}}": rate("process_cpu_seconds_total", "service")}),
        Panel(
            "Memory", "bytes", {"{{service}}": "sum by (service) (process_resident_memory_bytes)"}
        ),
        Panel(
            "PDF children ended",
            "reqps",
            {"{{by}}": rate("glossa_registry_pdf_children_killed_total", "by")},
        ),
        Panel(
            "Version",
            "short",
            {
                "{{service}} {{version}}": "sum by (service, version) "
                f"({of_all_services('build_info')})"
            },
        ),
    ],
    "Doctor": [
        Panel(
            "Invariants violated",
            "short",
            {"{{invariant}}": "max by (invariant) (glossa_doctor_violations) > 0"},
        ),
        Panel(
            "Since the last round",
            "s",
            {"age": "time() - max(glossa_doctor_last_run_timestamp_seconds)"},
            kind="stat",
        ),
        Panel(
            "References that disagree",
            "short",
            {"{{problem}}": "max by (problem) (glossa_registry_reference_health_findings)"},
        ),
        Panel(
            "Alerts", "short", {"{{alertname}}": 'sum by (alertname) (ALERTS{alertstate="firing"})'}
        ),
    ],
}
