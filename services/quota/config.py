"""Settings of the Quota service."""

from datetime import timedelta

from pydantic import Field

from services.quota.domain import DAY, Outcome, Rules, Tier
from services.runtime.settings import ServiceSettings


class Config(ServiceSettings):
    """Prices, windows and the allowance; `GLOSSA_UNITS_PER_PERIOD` and so on."""

    units_per_period: int = Field(default=1000, ge=0)
    period_days: int = Field(default=31, ge=1)
    price_generated: int = Field(default=1, ge=0)
    price_cached: int = Field(default=1, ge=0)
    price_joined: int = Field(default=0, ge=0)
    soft_limit: int = Field(default=3, ge=1)
    hard_limit: int = Field(default=10, ge=1)
    daily_limit: int = Field(default=100, ge=1)

    def rules(self) -> Rules:
        return Rules(
            tiers=(
                Tier(name="soft", limit=self.soft_limit, window=timedelta(minutes=1), blocks=False),
                Tier(name="hard", limit=self.hard_limit, window=timedelta(seconds=10)),
                Tier(name="daily", limit=self.daily_limit, window=DAY, across_endpoints=True),
            ),
            prices={
                Outcome.GENERATED: self.price_generated,
                Outcome.CACHED: self.price_cached,
                Outcome.JOINED: self.price_joined,
            },
            units_per_period=self.units_per_period,
            period=timedelta(days=self.period_days),
        )
