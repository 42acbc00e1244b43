"""Settings of the Cache service."""

from datetime import timedelta

from pydantic import Field

from services.cache.job_domain import ATTEMPT_BASE, Clocks
from services.runtime.settings import ExplanationSettings, ServiceSettings


class Config(ServiceSettings):
    """Addresses and clocks; `GLOSSA_REGISTRY_ADDRESS`, `GLOSSA_LEASE_SECONDS` and so on."""

    registry_address: str
    quota_address: str
    # Who keeps the metrics; without it nobody is told how long requests took.
    worker_address: str = ""
    # No longer than the shortest attempt: a lease ends with its attempt at the latest.
    lease_seconds: float = Field(default=30, gt=0, le=ATTEMPT_BASE.total_seconds())
    max_attempts: int = Field(default=3, ge=1)
    backoff_seconds: tuple[float, ...] = Field(default=(60, 300), min_length=1)
    backoff_jitter_seconds: float = Field(default=30, ge=0)
    queue_wait_seconds: float = Field(default=3600, gt=0)
    # Who has waited this long goes first, whatever the lane.
    ageing_seconds: float = Field(default=300, gt=0)
    # How long a page that failed for good is not tried again.
    remember_failure_seconds: float = Field(default=600, ge=0)
    # Failed and retired generations and settled requests; longer than any client retries.
    retention_days: float = Field(default=30, ge=1)
    # Ready results kept in memory.
    memory_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    hold_seconds: float = Field(default=5, gt=0)
    intent_seconds: float = Field(default=60, gt=0)
    sweep_seconds: float = Field(default=60, gt=0)
    poll_seconds: float = Field(default=1, gt=0)
    explanation: ExplanationSettings = Field(default_factory=ExplanationSettings)

    def clocks(self) -> Clocks:
        return Clocks(
            lease=timedelta(seconds=self.lease_seconds),
            queue_wait=timedelta(seconds=self.queue_wait_seconds),
            ageing=timedelta(seconds=self.ageing_seconds),
            remember_failure=timedelta(seconds=self.remember_failure_seconds),
            retention=timedelta(days=self.retention_days),
            hold=timedelta(seconds=self.hold_seconds),
            intent=timedelta(seconds=self.intent_seconds),
            max_attempts=self.max_attempts,
            backoff=tuple(timedelta(seconds=seconds) for seconds in self.backoff_seconds),
            jitter=timedelta(seconds=self.backoff_jitter_seconds),
        )
