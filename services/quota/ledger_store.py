"""SQL for writing the ledger: what a transaction has decided, saved at its end."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from services.quota.domain import Admission, Book, Changes, Charge, Entry
from services.runtime.database import Connection

INSERT_CHARGES = """
INSERT INTO quota.explain_requests
    (request_id, user_id, endpoint, outcome, generation_id, pdf_hash, page, locale, effective_mode,
     quota_units, status, share_to_cache, refunded_at, created_at)
SELECT charge.request_id, charge.user_id, charge.endpoint, charge.outcome, charge.generation_id,
       charge.pdf_hash, charge.page, charge.locale, charge.effective_mode, charge.quota_units,
       charge.status, charge.share_to_cache,
       CASE WHEN charge.status <> 'charged' THEN $13::timestamptz END, $13
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::integer[],
            $8::text[], $9::text[], $10::bigint[], $11::text[], $12::boolean[])
    AS charge (request_id, user_id, endpoint, outcome, generation_id, pdf_hash, page, locale,
               effective_mode, quota_units, status, share_to_cache)
"""

# State only moves away from charged; the caller holds the lock of the account.
UPDATE_CHARGES = """
UPDATE quota.explain_requests AS target
SET outcome = charge.outcome,
    generation_id = charge.generation_id,
    quota_units = charge.quota_units,
    status = charge.status,
    refund_reason = charge.refund_reason,
    refunded_at = CASE WHEN charge.status = 'refunded' THEN clock_timestamp() END
FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::bigint[], $5::text[], $6::text[])
    AS charge (request_id, outcome, generation_id, quota_units, status, refund_reason)
WHERE target.request_id = charge.request_id AND target.status = 'charged'
"""

INSERT_ENTRIES = """
INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)
SELECT entry.user_id, entry.request_id, entry.kind, entry.units, entry.reason
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[], $5::text[])
    AS entry (user_id, request_id, kind, units, reason)
"""

INSERT_ADMISSIONS = """
INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at)
SELECT admission.user_id, admission.endpoint, admission.admitted_at
FROM unnest($1::text[], $2::text[], $3::timestamptz[])
    AS admission (user_id, endpoint, admitted_at)
"""

# Moves the balance by the sum of the entries written with it: the two cannot drift apart.
UPDATE_ACCOUNTS = """
UPDATE quota.accounts AS account
SET balance_units = account.balance_units + change.units, period_ends_at = change.period_ends_at
FROM unnest($1::text[], $2::bigint[], $3::timestamptz[]) AS change (user_id, units, period_ends_at)
WHERE account.user_id = change.user_id
"""


class Ledger:
    """What a transaction has locked and read, and the rows it is going to write."""

    def __init__(self, *, now: datetime, charges: dict[UUID, Charge]) -> None:
        self.now = now
        self.books: dict[str, Book] = {}
        self.charges = charges
        self._inserted: list[Charge] = []
        # The last word on each id: an UPDATE takes only one of several rows for the same one.
        self._updated: dict[UUID, tuple[Charge, str]] = {}
        self._entries: list[Entry] = []
        self._admissions: list[tuple[str, Admission]] = []

    def record(self, book: Book, changes: Changes, *, refund_reason: str = "") -> None:
        self.books[book.user_id] = book
        self._entries += changes.entries
        self._admissions += ((book.user_id, admission) for admission in changes.admissions)
        for charge in changes.charges:
            if charge.request_id in self.charges:
                self._updated[charge.request_id] = (charge, refund_reason)
            else:
                self._inserted.append(charge)
            self.charges[charge.request_id] = charge

    async def save(self, connection: Connection) -> None:
        if self._inserted:
            await connection.execute(INSERT_CHARGES, *self._inserted_columns(), self.now)
        if self._updated:
            await connection.execute(UPDATE_CHARGES, *self._updated_columns())
        if self._admissions:
            await connection.execute(INSERT_ADMISSIONS, *self._admission_columns())
        if self._entries:
            await connection.execute(INSERT_ENTRIES, *self._entry_columns())
            await connection.execute(UPDATE_ACCOUNTS, *self._account_columns())

    def _inserted_columns(self) -> tuple[list[object], ...]:
        rows = [
            (
                charge.request_id,
                charge.user_id,
                charge.purchase.endpoint if charge.purchase else None,
                charge.outcome,
                charge.generation_id,
                charge.purchase.pdf_hash if charge.purchase else None,
                charge.purchase.page if charge.purchase else None,
                charge.purchase.locale if charge.purchase else None,
                charge.purchase.effective_mode if charge.purchase else None,
                charge.units,
                charge.status,
                charge.share_to_cache,
            )
            for charge in self._inserted
        ]
        return _columns(rows)

    def _updated_columns(self) -> tuple[list[object], ...]:
        rows = [
            (
                charge.request_id,
                charge.outcome,
                charge.generation_id,
                charge.units,
                charge.status,
                reason,
            )
            for charge, reason in self._updated.values()
        ]
        return _columns(rows)

    def _admission_columns(self) -> tuple[list[object], ...]:
        return _columns(
            [
                (user, admission.endpoint, admission.admitted_at)
                for user, admission in self._admissions
            ]
        )

    def _entry_columns(self) -> tuple[list[object], ...]:
        return _columns(
            [
                (entry.user_id, entry.request_id, entry.kind, entry.units, entry.reason)
                for entry in self._entries
            ]
        )

    def _account_columns(self) -> tuple[list[object], ...]:
        units: dict[str, int] = defaultdict(int)
        for entry in self._entries:
            units[entry.user_id] += entry.units
        return _columns(
            [(user, sum_, self.books[user].period_ends_at) for user, sum_ in units.items()]
        )


def _columns(rows: Sequence[tuple[object, ...]]) -> tuple[list[object], ...]:
    """Rows as the parallel arrays that unnest takes."""
    return tuple(list(column) for column in zip(*rows, strict=True))
