"""How far things may go before they are a violation: as the services themselves are configured."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pydantic import ValidationError

from services.cache.config import Config as CacheConfig
from services.doctor.verdict import CannotCheck
from services.quota.config import Config as QuotaConfig

GRACE = timedelta(minutes=5)
# Longer than any generation lives, and little enough to be asked every minute.
SINCE = timedelta(hours=2)
# The longest that is meant to be: the Worker sums up a day in at most ten minutes.
LONGEST_WORK = timedelta(minutes=11)
# What the services need to start, and nobody needs to know their limits.
UNUSED = {"database_url": "unused", "verify_key_file": "unused"}


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """How often a user of a plan may ask: in ten seconds, and in a day."""

    plan: str
    endpoint: str
    hard: int
    daily: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the queries are held against."""

    # How long recovery may take.
    grace: timedelta = GRACE
    # How far back what is new is looked at; None is everything there ever was.
    since: timedelta | None = SINCE
    max_attempts: int = 3
    queue_wait: timedelta = timedelta(hours=1)
    retention: timedelta = timedelta(days=30)
    # None where limits are not enforced.
    limits: Sequence[Allowed] = ()
    # How long a transaction may be open; unless told, the grace time but at least as long as work.
    transaction: timedelta | None = None

    def settings(self) -> Mapping[str, str]:
        """As the queries read them: `current_setting('glossa.grace')` and so on."""
        transaction = self.transaction
        if transaction is None:
            transaction = max(self.grace, LONGEST_WORK)
        return {
            "glossa.grace": _interval(self.grace),
            "glossa.max_attempts": str(self.max_attempts),
            "glossa.queue_wait": _interval(self.queue_wait),
            "glossa.retention": _interval(self.retention),
            "glossa.transaction": _interval(transaction),
            "glossa.limits": json.dumps([vars(allowed) for allowed in self.limits]),
        }


# For tests: everything there is, and recovery has had all the time it gets.
AT_REST = Bounds(grace=timedelta(), since=None)


def configured_bounds(*, grace: timedelta, since: timedelta | None) -> Bounds:
    """From the same GLOSSA_… variables as the services read."""
    try:
        quota = QuotaConfig.model_validate(UNUSED).rules()
        clocks = CacheConfig.model_validate(
            UNUSED | {"registry_address": "unused", "quota_address": "unused"}
        ).clocks()
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(str(part) for part in wrong["loc"]).upper()
        raise CannotCheck(
            f"GLOSSA_{name}: {wrong['msg']}",
            next_step="set it as the services have it",
        ) from None
    limits = () if quota.shadow else quota.limits.items()
    return Bounds(
        grace=grace,
        since=since,
        max_attempts=clocks.max_attempts,
        queue_wait=clocks.queue_wait,
        retention=clocks.retention,
        limits=[
            Allowed(plan=plan, endpoint=endpoint, hard=limit.hard, daily=limit.daily)
            for (plan, endpoint), limit in limits
        ],
    )


def _interval(duration: timedelta) -> str:
    return f"{duration.total_seconds()} seconds"
