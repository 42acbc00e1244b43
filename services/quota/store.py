"""Every SQL statement of the schema `quota`; one public method is one transaction."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import asyncpg
import structlog

from services.quota.domain import (
    DAY,
    Admission,
    AdmitRequest,
    Answer,
    Book,
    Changes,
    Charge,
    Limit,
    Outcome,
    Preferences,
    Purchase,
    Refund,
    Rules,
    Settled,
)
from services.quota.ledger_store import Ledger
from services.quota.rules import admit, limits_at, open_book, roll_period, settle
from services.runtime.database import Connection, Database
from services.runtime.errors import DependencyDown

# Users are locked in one order everywhere, so that two batches cannot wait for each other.
LOCK_ACCOUNTS = """
SELECT account.user_id, account.balance_units, account.period_ends_at
FROM quota.accounts AS account
WHERE account.user_id = ANY($1::text[])
ORDER BY account.user_id
FOR UPDATE
"""

# An account is born empty with its period over; the first use grants the allowance.
OPEN_ACCOUNTS = """
INSERT INTO quota.accounts (user_id, balance_units, period_ends_at)
SELECT wanted.user_id, 0, now()
FROM unnest($1::text[]) AS wanted (user_id)
ORDER BY wanted.user_id
ON CONFLICT (user_id) DO NOTHING
"""

# Asked once the locks are held: now() may be older than an admission this transaction waited for.
READ_CLOCK = "SELECT clock_timestamp()"

READ_ACCOUNT = """
SELECT account.user_id, account.balance_units, account.period_ends_at, clock_timestamp() AS now
FROM quota.accounts AS account
WHERE account.user_id = $1
"""

READ_WINDOWS = """
SELECT user_id, endpoint, admitted_at
FROM quota.ai_request_log
WHERE user_id = ANY($1::text[]) AND admitted_at > $2
ORDER BY admitted_at
"""

READ_OPTED_OUT = """
SELECT user_id
FROM quota.user_preferences
WHERE user_id = ANY($1::text[]) AND NOT share_to_cache
"""

READ_CHARGES = """
SELECT request_id, user_id, endpoint, outcome, generation_id, pdf_hash, page, locale,
       effective_mode, quota_units, status, share_to_cache
FROM quota.explain_requests
WHERE request_id = ANY($1::uuid[])
ORDER BY request_id
"""

READ_PREFERENCES = """
SELECT share_to_cache, updated_at FROM quota.user_preferences WHERE user_id = $1
"""

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

# More than two are needed only while others race us for the same new ids.
_TRIES = 5
_PRUNED_AT_ONCE = 5_000
_REQUEST_ID_TAKEN = "explain_requests_pkey"
_Result = TypeVar("_Result")
log = structlog.get_logger()


class _AccountsMissing(Exception):
    """Some of these users have no account yet."""

    def __init__(self, users: Sequence[str]) -> None:
        self.users = users


class QuotaStore:
    """Accounts, ledger and windows."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def admit_many(self, requests: Sequence[AdmitRequest]) -> list[Answer]:
        """Decide a batch in order, each request seeing what those before it were given."""
        users = {request.purchase.user_id for request in requests}
        ids = [request.request_id for request in requests]

        async def decide(connection: Connection) -> list[Answer]:
            ledger = await self._lock(connection, users, ids)
            answers = [self._admit(ledger, request) for request in requests]
            await ledger.save(connection)
            return answers

        return await self._transact(decide)

    async def refund(self, items: Sequence[Refund]) -> list[Settled]:
        """Settle a batch of refunds; unknown request_ids leave a void behind."""
        ids = [item.request_id for item in items]

        async def decide(connection: Connection) -> list[Settled]:
            ledger = await self._lock(connection, {item.user_id for item in items}, ids)
            results = [self._settle(ledger, item) for item in items]
            await ledger.save(connection)
            return results

        return await self._transact(decide)

    async def read_status(
        self, user_id: str, endpoint: str
    ) -> tuple[tuple[Limit, ...], int, datetime]:
        """Windows, units left and the end of the period, without taking a lock or writing."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_ACCOUNT, user_id)
            now = row["now"] if row else await connection.fetchval(READ_CLOCK)
            book = _book(row) if row else open_book(user_id, now=now)
            windows = await _read_windows(connection, [user_id], now)
        book = replace(book, admissions=windows[user_id])
        book, _ = roll_period(book, rules=self._rules, now=now)
        limits = limits_at(book, endpoint, rules=self._rules, now=now)
        return limits, book.balance_units, book.period_ends_at

    async def read_preferences(self, user_id: str) -> Preferences:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_PREFERENCES, user_id)
        return Preferences(**row) if row else Preferences()

    async def update_preferences(self, user_id: str, *, share_to_cache: bool | None) -> Preferences:
        """Save a choice under the user's lock: no charge is decided half before, half after it."""

        async def save(connection: Connection) -> Preferences:
            ledger = await self._lock(connection, [user_id], [])
            await ledger.save(connection)
            row = await connection.fetchrow(SAVE_PREFERENCES, user_id, share_to_cache, ledger.now)
            assert row is not None
            return Preferences(**row)

        return await self._transact(save)

    async def prune_windows(self) -> None:
        """Forget admissions that no window counts any more, a few at a time: no lock lasts long."""
        pruned = _PRUNED_AT_ONCE
        while pruned == _PRUNED_AT_ONCE:
            async with self._database.connection() as connection:
                tag = await connection.execute(PRUNE_WINDOWS, _PRUNED_AT_ONCE)
            pruned = int(tag.rpartition(" ")[2])

    async def _transact(self, decide: Callable[[Connection], Awaitable[_Result]]) -> _Result:
        """Run `decide` in a transaction, again when it met new users or lost a race for an id."""
        for _ in range(_TRIES):
            try:
                async with self._database.transaction() as connection:
                    return await decide(connection)
            except _AccountsMissing as missing:
                # In a transaction of its own: inserting while holding locks could deadlock.
                async with self._database.connection() as connection:
                    await connection.execute(OPEN_ACCOUNTS, missing.users)
            except asyncpg.UniqueViolationError as error:
                if error.constraint_name != _REQUEST_ID_TAKEN:
                    raise
                # Another user's batch brought the same new request_id; next time it is read.
                log.info("request_id_race_lost")
        raise DependencyDown("too many requests at once for the same ids", reason="OVERLOADED")

    def _admit(self, ledger: Ledger, request: AdmitRequest) -> Answer:
        decided = admit(
            ledger.books[request.purchase.user_id],
            request,
            ledger.charges.get(request.request_id),
            rules=self._rules,
            now=ledger.now,
        )
        ledger.record(decided.book, decided.changes)
        return decided.answer

    def _settle(self, ledger: Ledger, item: Refund) -> Settled:
        charge = ledger.charges.get(item.request_id)
        settled = settle(ledger.books[item.user_id], charge, item, rules=self._rules)
        ledger.record(settled.book, settled.changes, refund_reason=item.reason)
        return settled

    async def _lock(
        self, connection: Connection, users: Iterable[str], request_ids: Sequence[UUID]
    ) -> Ledger:
        """Lock the users' accounts in order and read all that decisions about them need."""
        names = sorted(set(users))
        rows = await connection.fetch(LOCK_ACCOUNTS, names)
        if len(rows) < len(names):
            raise _AccountsMissing(names)
        now = await connection.fetchval(READ_CLOCK)
        windows = await _read_windows(connection, names, now)
        opted_out = {row["user_id"] for row in await connection.fetch(READ_OPTED_OUT, names)}
        charges = await _read_charges(connection, request_ids)
        ledger = Ledger(now=now, charges=charges)
        for row in rows:
            book = replace(
                _book(row),
                admissions=windows[row["user_id"]],
                share_to_cache=row["user_id"] not in opted_out,
            )
            rolled, entries = roll_period(book, rules=self._rules, now=now)
            ledger.record(rolled, Changes(entries=entries))
        return ledger


async def _read_windows(
    connection: Connection, users: Sequence[str], now: datetime
) -> Mapping[str, tuple[Admission, ...]]:
    windows: dict[str, tuple[Admission, ...]] = dict.fromkeys(users, ())
    for row in await connection.fetch(READ_WINDOWS, users, now - DAY):
        admission = Admission(endpoint=row["endpoint"], admitted_at=row["admitted_at"])
        windows[row["user_id"]] += (admission,)
    return windows


async def _read_charges(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, Charge]:
    rows = await connection.fetch(READ_CHARGES, ids)
    return {row["request_id"]: _charge(row) for row in rows}


def _book(row: asyncpg.Record) -> Book:
    return Book(
        user_id=row["user_id"],
        balance_units=row["balance_units"],
        period_ends_at=row["period_ends_at"],
    )


def _charge(row: asyncpg.Record) -> Charge:
    return Charge(
        request_id=row["request_id"],
        user_id=row["user_id"],
        purchase=None if row["status"] == "void" else _purchase(row),
        outcome=Outcome(row["outcome"]) if row["outcome"] else None,
        generation_id=row["generation_id"],
        units=row["quota_units"],
        status=row["status"],
        share_to_cache=row["share_to_cache"],
    )


def _purchase(row: asyncpg.Record) -> Purchase:
    return Purchase(
        user_id=row["user_id"],
        endpoint=row["endpoint"],
        pdf_hash=row["pdf_hash"],
        page=row["page"],
        locale=row["locale"],
        effective_mode=row["effective_mode"],
    )
