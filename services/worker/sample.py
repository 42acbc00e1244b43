"""How long requests took, and what a day of them comes to, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """Requests for one page that were served alike; the columns have one entry for each."""

    kind: str
    pdf_hash: str
    page: int
    locale: str
    effective_mode: str
    # generated, joined or cached
    outcome: str
    images_count: int
    chunks: int
    latency_ms: Sequence[int]
    age_ms: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Percentiles, each a value that was measured."""

    p50_ms: int = 0
    p95_ms: int = 0
    p99_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What happened in an hour or a day, to everything or a part of it."""

    cache_hits: int = 0
    cache_misses: int = 0
    joins: int = 0
    failures: int = 0
    generation: Latency = Latency()
    hit: Latency = Latency()
    total_images: int = 0
    total_chunks: int = 0


@dataclass(frozen=True, kw_only=True)
class DailySummary:
    """One day (UTC) in numbers; parts are named by mode, language or document."""

    day: date
    total: Metrics = Metrics()
    hours: Mapping[int, Metrics] = field(default_factory=dict)
    modes: Mapping[str, Metrics] = field(default_factory=dict)
    locales: Mapping[str, Metrics] = field(default_factory=dict)
    documents: Mapping[str, Metrics] = field(default_factory=dict)
    # Why generations failed, most first.
    failures: Mapping[str, int] = field(default_factory=dict)
    complete_until: datetime
    open_dead_letters: int = 0
