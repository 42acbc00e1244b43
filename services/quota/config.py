"""Settings of the Quota service."""

from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from services.quota.domain import ENDPOINTS, PLANS, Limits, Outcome, Rules
from services.runtime.settings import ServiceSettings

NANODOLLARS = 1_000_000_000


def _one_of(known: tuple[str, ...]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"{name!r} is none of {', '.join(known)}")
        return name

    return AfterValidator(check)


ANY = "*"
Plan = Annotated[str, _one_of(PLANS)]
AnyPlan = Annotated[str, _one_of((ANY, *PLANS))]
AnyEndpoint = Annotated[str, _one_of((ANY, *ENDPOINTS))]


class LimitOverride(BaseModel):
    """Limits of a plan or endpoint that differ from the rest."""

    model_config = ConfigDict(extra="forbid")

    soft: int | None = Field(default=None, ge=1)
    hard: int | None = Field(default=None, ge=1)
    daily: int | None = Field(default=None, ge=1)


class Config(ServiceSettings):
    """Prices, windows and the allowance; `GLOSSA_UNITS_PER_PERIOD` and so on."""

    units_per_period: int = Field(default=1000, ge=0)
    # Allowances of plans that differ: {"free": 100}.
    plan_units: dict[Plan, Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    period_days: int = Field(default=31, ge=1)
    price_generated: int = Field(default=1, ge=0)
    price_cached: int = Field(default=1, ge=0)
    price_joined: int = Field(default=0, ge=0)
    soft_limit: int = Field(default=3, ge=1)
    hard_limit: int = Field(default=10, ge=1)
    daily_limit: int = Field(default=100, ge=1)
    # By plan and endpoint, "*" for any; the plan's word counts before the endpoint's:
    # {"free": {"*": {"daily": 20}}}.
    limits: dict[AnyPlan, dict[AnyEndpoint, LimitOverride]] = Field(default_factory=dict)
    # Decide and count what the limits would refuse, but refuse nothing.
    shadow_limits: bool = False
    # What one user's new explanations may cost in a month, if it is enforced at all.
    monthly_budget_dollars: float = Field(default=1.0, ge=0)
    enforce_monthly_budget: bool = False
    # What everybody's may cost in a day, and those of one document ever; 0 is no ceiling. Costs are
    # known when a call ends: what is queued when a ceiling is reached is still made.
    daily_ceiling_dollars: float = Field(default=100.0, ge=0)
    document_ceiling_dollars: float = Field(default=10.0, ge=0)
    # How long a paid call may wait for the database before it is refused, and how many may wait.
    answer_within_seconds: float = Field(default=0.5, gt=0, le=60)
    max_waiting_calls: int = Field(default=200, ge=1)

    def rules(self) -> Rules:
        return Rules(
            limits={
                (plan, endpoint): self._limits(plan, endpoint)
                for plan in PLANS
                for endpoint in ENDPOINTS
            },
            units={plan: self.plan_units.get(plan, self.units_per_period) for plan in PLANS},
            prices={
                Outcome.GENERATED: self.price_generated,
                Outcome.CACHED: self.price_cached,
                Outcome.JOINED: self.price_joined,
            },
            period=timedelta(days=self.period_days),
            shadow=self.shadow_limits,
            monthly_budget=(
                _nanodollars(self.monthly_budget_dollars) if self.enforce_monthly_budget else None
            ),
            daily_ceiling=_nanodollars(self.daily_ceiling_dollars) or None,
            document_ceiling=_nanodollars(self.document_ceiling_dollars) or None,
        )

    def _limits(self, plan: str, endpoint: str) -> Limits:
        chosen = {"soft": self.soft_limit, "hard": self.hard_limit, "daily": self.daily_limit}
        # From the general to the particular: the last word counts.
        for of_plan, of_endpoint in ((ANY, ANY), (ANY, endpoint), (plan, ANY), (plan, endpoint)):
            override = self.limits.get(of_plan, {}).get(of_endpoint)
            if override is not None:
                chosen |= override.model_dump(exclude_none=True)
        return Limits(**chosen)


def _nanodollars(dollars: float) -> int:
    return round(dollars * NANODOLLARS)
