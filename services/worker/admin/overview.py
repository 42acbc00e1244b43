"""Gathers what the metrics page shows; a source that is away leaves its part out, not the page."""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TypeVar

import structlog

from services.runtime.errors import GlossaError
from services.worker.admin.clients import Others
from services.worker.admin.memo import Memo
from services.worker.admin.values import Days, Losses, Money, Part, Queue, References
from services.worker.dashboard_store import DashboardStore, Period
from services.worker.metrics_store import MetricsStore
from services.worker.sample import DailySummary

log = structlog.get_logger()

DAYS = 14
QUEUE_SECONDS = 1.0
REFERENCES_SECONDS = 60.0
# Quota sums it up from single calls and charges.
MONEY_SECONDS = 60.0

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Everything on the metrics page; `day` is the one the big numbers are about."""

    day: date
    today: date
    kind: str
    summary: Part[DailySummary]
    period: Part[Period]
    money: Part[Days[Money]]
    losses: Part[Days[Losses]]
    references: Part[References]
    queue: Part[Queue]

    @property
    def days(self) -> list[date]:
        """All of them, oldest first, whether or not anything happened."""
        return [self.today - timedelta(days=back) for back in range(DAYS - 1, -1, -1)]

    @property
    def missing(self) -> Mapping[str, str]:
        """Which parts could not be shown, and why."""
        parts = {
            "requests and failures": self.summary.missing or self.period.missing,
            "money and refunds": self.money.missing,
            "expired leases": self.losses.missing,
            "references": self.references.missing,
            "the live queue": self.queue.missing,
        }
        return {name: why for name, why in parts.items() if why}


class ReadOverview:
    """Asks everybody at the same time."""

    def __init__(self, *, store: DashboardStore, metrics: MetricsStore, others: Others) -> None:
        self._store = store
        self._metrics = metrics
        self._others = others
        self._queue = Memo(others.describe_queue, fresh_seconds=QUEUE_SECONDS)
        self._references = Memo(others.check_references, fresh_seconds=REFERENCES_SECONDS)
        self._money = Memo(self._list_money, fresh_seconds=MONEY_SECONDS)

    async def read(self, day: date | None, kind: str) -> Overview:
        """Of the last fortnight, and of one day in it; yesterday unless told."""
        today = datetime.now(UTC).date()
        first_day = today - timedelta(days=DAYS - 1)
        day = day or today - timedelta(days=1)
        summary, period, money, losses, references, queue = await asyncio.gather(
            part(self._metrics.read_summary(day, kind)),
            part(self._store.read_period(first_day, today, kind)),
            part(self._money.get()),
            part(self._others.list_losses(DAYS)),
            part(self._references.get()),
            part(self._queue.get()),
        )
        return Overview(
            day=day,
            today=today,
            kind=kind,
            summary=summary,
            period=period,
            money=money,
            losses=losses,
            references=references,
            queue=queue,
        )

    async def _list_money(self) -> Days[Money]:
        today = datetime.now(UTC).date()
        return await self._others.list_money(today - timedelta(days=DAYS - 1), today)

    async def read_queue(self) -> Part[Queue]:
        return await part(self._queue.get())


async def part(reading: Awaitable[Value]) -> Part[Value]:
    """What was read, or in words why it is missing."""
    try:
        return Part(value=await reading)
    except GlossaError as error:
        log.warning("admin_part_missing", reason=error.reason)
        return Part(missing=error.message)
    except Exception:
        # The text of an unexpected error may hold anything: it stays in the log.
        log.exception("admin_part_broke")
        return Part(missing="something went wrong, and the Worker's log says what")
