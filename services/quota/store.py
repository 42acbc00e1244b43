"""SQL of accounts, charges, windows and preferences; one public method is one transaction."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any
from uuid import UUID

import asyncpg
import structlog

from services.quota.domain import (
    DAY,
    HARD_WINDOW,
    SOFT_WINDOW,
    AdmitRequest,
    Answer,
    Preferences,
    Refund,
    Rules,
    Settled,
    Status,
    Windows,
    limits_of,
)
from services.quota.ledger_store import acting_for
from services.runtime.database import Database
from services.runtime.errors import AlreadyExists, DependencyDown

# The rules are in the function: see migrations/0009_create_admit_many.sql and 0013.
ADMIT_MANY = """
SELECT decision, units, remaining_units, share_to_cache, retry_after, outcome, generation_id,
       shadow_decision, plan, "position",
       soft_used, soft_since, hard_used, hard_since, daily_used, daily_since
FROM quota.admit_many($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
"""

# See migrations/0010_create_settle_refunds.sql.
SETTLE_REFUNDS = """
SELECT result, units, remaining_units
FROM quota.settle_refunds($1, $2, $3, $4, $5, $6, $7)
ORDER BY "position"
"""

LIST_PAYERS = """
SELECT request_id, user_id
FROM quota.explain_requests
WHERE generation_id = $1 AND status = 'charged'
ORDER BY user_id, request_id
"""

RESET_QUOTA = "SELECT quota.reset_quota($1, $2, $3, $4, $5, NULL)"

# What is left and what the windows hold, without taking a lock.
READ_STATUS = """
SELECT account.balance_units, account.period_ends_at, account.plan, clock.now,
       used.soft_used, used.soft_since, used.hard_used, used.hard_since,
       used.daily_used, used.daily_since
FROM clock_timestamp() AS clock (now)
LEFT JOIN quota.accounts AS account ON account.user_id = $1
CROSS JOIN LATERAL quota.windows_of(
    $1, $2, $3, clock.now - $4::interval, clock.now - $5::interval, clock.now - $6::interval
) AS used
"""

READ_PREFERENCES = """
SELECT share_to_cache, updated_at FROM quota.user_preferences WHERE user_id = $1
"""

LOCK_ACCOUNT = "SELECT quota.lock_accounts($1, ARRAY[$2::text], NULL)"

# What is not given (NULL) stays as it is.
SAVE_PREFERENCES = """
INSERT INTO quota.user_preferences AS preference (user_id, share_to_cache, updated_at)
VALUES ($1, coalesce($2::boolean, true), $3)
ON CONFLICT (user_id) DO UPDATE
SET share_to_cache = coalesce($2, preference.share_to_cache), updated_at = $3
RETURNING share_to_cache, updated_at
"""

PRUNE_WINDOWS = """
DELETE FROM quota.ai_request_log
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM quota.ai_request_log
    WHERE admitted_at < clock_timestamp() - interval '25 hours'
    LIMIT $1
))
"""

# One of several racing batches wins each new id; the others read it the next time.
_TRIES = 5
_PRUNED_AT_ONCE = 5_000
_REFUNDED_AT_ONCE = 1_000
_REQUEST_ID_TAKEN = "explain_requests_pkey"
_RESET_ID_TAKEN = "ledger_entry_once_per_request_idx"
log = structlog.get_logger()


class RequestIdReused(AlreadyExists):
    """The request_id was used for another user, endpoint or page."""

    reason = "REQUEST_ID_REUSED"


class QuotaStore:
    """Accounts, charges and windows."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules
        self._rules_json = rules.as_json()

    async def admit_many(
        self, requests: Sequence[AdmitRequest], *, moment: datetime | None = None
    ) -> list[Answer]:
        """Decide a batch in order; `moment` is for tests, the clock is the database's."""
        answers: list[Answer] = []
        for batch in without_twins(requests):
            rows = await self._fetch(ADMIT_MANY, batch, moment)
            # Users are decided one after the other; the answers go back in the order asked.
            rows.sort(key=itemgetter("position"))
            answers += (
                self._answer(row, request) for row, request in zip(rows, batch, strict=True)
            )
        return answers

    async def settle_refunds(
        self, refunds: Sequence[Refund], *, moment: datetime | None = None
    ) -> list[Settled]:
        """Settle a batch of refunds; unknown request_ids leave a void behind."""
        return [Settled(*row) for row in await self._fetch(SETTLE_REFUNDS, refunds, moment)]

    async def refund_generation(
        self, generation_id: UUID, reason: str
    ) -> list[tuple[Refund, Settled]]:
        """Give everyone their charge back who has paid for a generation."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_PAYERS, generation_id)
        refunds = [Refund(row["request_id"], row["user_id"], reason) for row in rows]
        settled: list[Settled] = []
        for start in range(0, len(refunds), _REFUNDED_AT_ONCE):
            settled += await self.settle_refunds(refunds[start : start + _REFUNDED_AT_ONCE])
        return list(zip(refunds, settled, strict=True))

    async def reset_quota(
        self, user_id: str, *, request_id: UUID, reason: str, clear_windows: bool
    ) -> int:
        """Give a user the whole allowance again; the units it has now."""
        arguments = (self._rules_json, user_id, request_id, reason, clear_windows)
        try:
            async with self._database.connection() as connection:
                units: int = await connection.fetchval(RESET_QUOTA, *arguments)
        except asyncpg.UniqueViolationError as error:
            if error.constraint_name != _RESET_ID_TAKEN:
                raise
            message = "request_id was used to reset somebody else; use a new one"
            raise RequestIdReused(message, field="request_id") from None
        return units

    async def read_status(self, user_id: str, endpoint: str) -> Status:
        """Windows, units left and the end of the period, without taking a lock or writing."""
        lengths = (SOFT_WINDOW, HARD_WINDOW, DAY)
        endpoints = self._rules_json["endpoints"]
        async with acting_for(self._database, user_id) as connection:
            row = await connection.fetchrow(READ_STATUS, user_id, endpoint, endpoints, *lengths)
        assert row is not None
        plan = row["plan"] or self._rules.first_plan
        limits = limits_of(self._rules.limits[plan, endpoint], Windows(*tuple(row)[-6:]))
        ends_at, now = row["period_ends_at"] or row["now"], row["now"]
        if now < ends_at:
            return Status(limits, row["balance_units"], ends_at)
        # The next use starts the next period; it is told before it is written.
        periods = (now - ends_at) // self._rules.period + 1
        return Status(limits, self._rules.units[plan], ends_at + periods * self._rules.period)

    async def read_preferences(self, user_id: str) -> Preferences:
        async with acting_for(self._database, user_id) as connection:
            row = await connection.fetchrow(READ_PREFERENCES, user_id)
        return Preferences(**row) if row else Preferences()

    async def update_preferences(self, user_id: str, *, share_to_cache: bool | None) -> Preferences:
        """Save a choice under the user's lock: no charge is decided half before, half after it."""
        async with self._database.transaction() as connection:
            now = await connection.fetchval(LOCK_ACCOUNT, self._rules_json, user_id)
            row = await connection.fetchrow(SAVE_PREFERENCES, user_id, share_to_cache, now)
        assert row is not None
        return Preferences(**row)

    async def prune_windows(self) -> None:
        """Forget admissions that no window counts any more, a few at a time: no lock lasts long."""
        pruned = _PRUNED_AT_ONCE
        while pruned == _PRUNED_AT_ONCE:
            async with self._database.connection() as connection:
                tag = await connection.execute(PRUNE_WINDOWS, _PRUNED_AT_ONCE)
            pruned = int(tag.rpartition(" ")[2])

    async def _fetch(
        self, statement: str, batch: Sequence[tuple[Any, ...]], moment: datetime | None
    ) -> list[asyncpg.Record]:
        """One statement, again when another user's batch brought the same new request_id first."""
        arguments = (self._rules_json, *zip(*batch, strict=True), moment)
        for _ in range(_TRIES):
            try:
                async with self._database.connection() as connection:
                    return await connection.fetch(statement, *arguments)
            except asyncpg.UniqueViolationError as error:
                if error.constraint_name != _REQUEST_ID_TAKEN:
                    raise
                log.info("request_id_race_lost")
        raise DependencyDown("too many requests at once for the same ids", reason="OVERLOADED")

    def _answer(self, row: asyncpg.Record, request: AdmitRequest) -> Answer:
        limits = self._rules.limits[row["plan"], request.endpoint]
        told = tuple(row)
        # The columns of ADMIT_MANY: eight of the answer, plan and position, six of the windows.
        return Answer._make((*told[:8], limits_of(limits, Windows._make(told[10:]))))


def without_twins(requests: Sequence[AdmitRequest]) -> Iterator[Sequence[AdmitRequest]]:
    """Cut a batch before a request_id comes again, so that the second sees what the first did."""
    seen: set[UUID] = set()
    start = 0
    for index, request in enumerate(requests):
        if request.request_id in seen:
            yield requests[start:index]
            start, seen = index, set()
        seen.add(request.request_id)
    yield requests[start:]
