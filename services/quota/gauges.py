"""Keeps the gauges about today's money up to date."""

from dataclasses import dataclass

from services.quota.cost_store import CostStore
from services.quota.metrics import DAILY_CEILING_DOLLARS, SPENT_TODAY_DOLLARS

NANODOLLARS = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """One look; replicas see the same and tell the same."""

    costs: CostStore

    async def look(self) -> None:
        day = (await self.costs.read_budgets("", "")).day
        SPENT_TODAY_DOLLARS.set(day.spent_nanodollars / NANODOLLARS)
        DAILY_CEILING_DOLLARS.set((day.limit_nanodollars or 0) / NANODOLLARS)
