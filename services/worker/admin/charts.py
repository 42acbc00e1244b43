"""The charts of the metrics page: what is drawn, as plain numbers that the browser gets as JSON."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from services.worker.admin.overview import Overview
from services.worker.admin.values import Losses, Money
from services.worker.dashboard_store import Day
from services.worker.sample import Metrics

REASONS_DRAWN = 5
OTHER_REASONS = "other reasons"
NOTHING = Day(total=Metrics(), modes={}, failures={})
Number = float | None


@dataclass(frozen=True, kw_only=True)
class Series:
    label: str
    # One for each day; None where there is nothing to measure.
    values: Sequence[Number]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure; `kind` is "bars" (stacked) or "lines", `unit` says how numbers are written."""

    name: str
    title: str
    kind: str
    unit: str
    days: Sequence[str]
    series: Sequence[Series]

    @property
    def is_empty(self) -> bool:
        values = [value for series in self.series for value in series.values]
        # A time of zero is a fast answer, a count of zero is nothing.
        return not any(value or (self.unit == "ms" and value is not None) for value in values)

    def data(self) -> dict[str, Any]:
        return asdict(self)


def charts_of(overview: Overview) -> list[Chart]:
    """Those that can be drawn: a part that is missing has none."""
    charts = []
    if overview.period.value is not None:
        days = [overview.period.value.days.get(day, NOTHING) for day in overview.days]
        charts += [_requests(overview, days), _hit_rate(overview, days)]
        charts += [_latency(overview, days), _failures(overview, days)]
    if overview.money.value is not None:
        charts.append(_money(overview, overview.money.value.get))
        charts.append(_refunds(overview, overview.money.value.get))
    if overview.losses.value is not None:
        charts.append(_losses(overview, overview.losses.value.get))
    return charts


def hit_rate(metrics: Metrics) -> float | None:
    """Answers from the cache among all answers, in percent."""
    requests = metrics.cache_hits + metrics.cache_misses + metrics.joins
    return 100 * metrics.cache_hits / requests if requests else None


def made_ms(metrics: Metrics) -> int | None:
    """The p95 of what was made or joined; None where nothing was."""
    return metrics.generation.p95_ms if metrics.cache_misses + metrics.joins else None


def hit_ms(metrics: Metrics) -> int | None:
    return metrics.hit.p95_ms if metrics.cache_hits else None


def _chart(overview: Overview, series: Sequence[Series], **about: str) -> Chart:
    days = [day.isoformat() for day in overview.days]
    return Chart(days=days, series=series, **about)


def _requests(overview: Overview, days: Sequence[Day]) -> Chart:
    series = [
        Series(label="from the cache", values=[day.total.cache_hits for day in days]),
        Series(label="joined", values=[day.total.joins for day in days]),
        Series(label="made", values=[day.total.cache_misses for day in days]),
    ]
    return _chart(
        overview, series, name="requests", title="Requests served", kind="bars", unit="count"
    )


def _hit_rate(overview: Overview, days: Sequence[Day]) -> Chart:
    series = [
        Series(label="all", values=[hit_rate(day.total) for day in days]),
        *(
            Series(label=mode, values=[_of_mode(day, mode, hit_rate) for day in days])
            for mode in _modes(days)
        ),
    ]
    return _chart(
        overview, series, name="hit-rate", title="Hit rate by mode", kind="lines", unit="percent"
    )


def _latency(overview: Overview, days: Sequence[Day]) -> Chart:
    series = [
        *(
            Series(label=f"{mode}, made", values=[_of_mode(day, mode, made_ms) for day in days])
            for mode in _modes(days)
        ),
        Series(label="from the cache", values=[hit_ms(day.total) for day in days]),
    ]
    return _chart(
        overview, series, name="latency", title="p95 from ask to answer", kind="lines", unit="ms"
    )


def _failures(overview: Overview, days: Sequence[Day]) -> Chart:
    total = Counter[str]()
    for day in days:
        total.update(day.failures)
    drawn = [reason for reason, _ in total.most_common(REASONS_DRAWN)]
    series = [
        Series(label=reason, values=[day.failures.get(reason, 0) for day in days])
        for reason in drawn
    ]
    if len(total) > len(drawn):
        rest = [
            sum(number for reason, number in day.failures.items() if reason not in drawn)
            for day in days
        ]
        series.append(Series(label=OTHER_REASONS, values=rest))
    return _chart(
        overview, series, name="failures", title="Failures by reason", kind="bars", unit="count"
    )


def _money(overview: Overview, of_day: Callable[[date, Money], Money]) -> Chart:
    days = [of_day(day, Money()) for day in overview.days]
    series = [
        Series(label="spent", values=[day.spent_nanodollars / 1e9 for day in days]),
        Series(label="saved by sharing", values=[day.saved_nanodollars / 1e9 for day in days]),
    ]
    return _chart(
        overview, series, name="money", title="Money spent and saved", kind="lines", unit="dollars"
    )


def _refunds(overview: Overview, of_day: Callable[[date, Money], Money]) -> Chart:
    days = [of_day(day, Money()) for day in overview.days]
    reasons = sorted({refund.reason for day in days for refund in day.refunds})
    series = [
        Series(
            label=reason.replace("_", " "),
            values=[
                sum(refund.count for refund in day.refunds if refund.reason == reason)
                for day in days
            ],
        )
        for reason in reasons
    ]
    return _chart(
        overview, series, name="refunds", title="Refunds by reason", kind="bars", unit="count"
    )


def _losses(overview: Overview, of_day: Callable[[date, Losses], Losses]) -> Chart:
    days = [of_day(day, Losses()) for day in overview.days]
    series = [
        Series(label="lease expired", values=[day.leases_expired for day in days]),
        Series(label="never taken up", values=[day.queue_timeouts for day in days]),
    ]
    return _chart(
        overview,
        series,
        name="losses",
        title="Zombies: work that nobody finished",
        kind="bars",
        unit="count",
    )


def _modes(days: Sequence[Day]) -> list[str]:
    return sorted({mode for day in days for mode in day.modes})


def _of_mode(day: Day, mode: str, measure: Callable[[Metrics], Number]) -> Number:
    return measure(day.modes[mode]) if mode in day.modes else None
