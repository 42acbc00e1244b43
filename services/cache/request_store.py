"""SQL for requests: intents, who holds them, and what became of them."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from services.cache.domain import (
    Ask,
    Outcome,
    Request,
    RequestRecord,
    RequestState,
    ResolvedPage,
)
from services.cache.job_domain import Clocks
from services.runtime.batching import Batcher
from services.runtime.database import Database

# A part of statements, not one itself: lower case keeps it out of the list of statements.
request_columns = """request_id, user_id, pdf_hash, page, locale, state, nonce, outcome,
          generation_id, scope, background, kind"""

OPEN_INTENTS = f"""
INSERT INTO cache.requests (
    request_id, user_id, pdf_hash, page, locale, nonce, outcome, generation_id, scope, background,
    kind, held_until
)
SELECT intent.request_id, intent.user_id, intent.pdf_hash, intent.page, intent.locale,
       intent.nonce, intent.outcome, intent.generation_id, intent.scope, intent.background,
       intent.kind, now() + $12::interval
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::uuid[], $7::text[],
    $8::uuid[], $9::text[], $10::boolean[], $11::text[]
) AS intent (
    request_id, user_id, pdf_hash, page, locale, nonce, outcome, generation_id, scope, background,
    kind
)
ON CONFLICT (request_id) DO NOTHING
RETURNING {request_columns}
"""

READ_REQUEST = f"""
SELECT {request_columns}
FROM cache.requests
WHERE request_id = $1
"""

READ_REQUESTS = f"""
SELECT {request_columns}
FROM cache.requests
WHERE request_id = ANY($1::uuid[])
"""

READ_RECORD = f"""
SELECT {request_columns}, units, created_at, updated_at,
       EXISTS (SELECT FROM cache.outbox AS due WHERE due.request_id = $1) AS refund_due
FROM cache.requests
WHERE request_id = $1
"""

LOCK_REQUEST = READ_REQUEST + " FOR UPDATE"

# Only from somebody who has given it up or been silent for too long: two callers who keep taking it
# from each other would never get anywhere.
TAKE_OVER_INTENT = f"""
UPDATE cache.requests
SET nonce = $2, held_until = now() + $3::interval, updated_at = now()
WHERE request_id = $1 AND state = 'intent' AND held_until < now()
RETURNING {request_columns}
"""

GIVE_UP_INTENT = """
UPDATE cache.requests
SET held_until = '-infinity'
WHERE request_id = $1 AND state = 'intent' AND nonce = $2
"""

# A refused request leaves no trace: its id may be used again.
DROP_INTENT = """
DELETE FROM cache.requests
WHERE request_id = $1 AND state = 'intent' AND nonce = $2
"""

# Whether the charge landed is not known: refunding an id that was never charged voids it.
ABORT_STALE_INTENTS = """
WITH aborted AS (
    UPDATE cache.requests
    SET state = 'aborted', updated_at = now()
    WHERE state = 'intent' AND updated_at < now() - $1::interval
    RETURNING request_id, user_id
)
INSERT INTO cache.outbox (request_id, user_id, reason)
SELECT request_id, user_id, 'request_aborted' FROM aborted
"""

HAS_ASKED = "SELECT 1 FROM cache.requests WHERE generation_id = $1 AND user_id = $2 LIMIT 1"


# The columns of OPEN_INTENTS, one request a row.
_Intent = tuple[UUID, str, str, int, str, UUID, Outcome, UUID | None, str, bool, str]
_NONCE = 5


class RequestStore:
    """Requests and the outbox."""

    def __init__(self, database: Database, clocks: Clocks) -> None:
        self._database = database
        self._clocks = clocks
        # Every call with an id of its own asks; under load many are answered by one query.
        self._reads = Batcher(self._read_requests)
        self._intents = Batcher(self._open_intents)

    async def read_request(self, request_id: UUID) -> Request | None:
        return await self._reads.submit(request_id)

    async def _read_requests(self, request_ids: Sequence[UUID]) -> list[Request | None]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(READ_REQUESTS, request_ids)
        found = {row["request_id"]: request_from(row) for row in rows}
        return [found.get(request_id) for request_id in request_ids]

    async def read_record(self, request_id: UUID) -> RequestRecord | None:
        """All that is on record about a request."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_RECORD, request_id)
        if row is None:
            return None
        return RequestRecord(
            request=request_from(row),
            units=row["units"],
            refund_due=row["refund_due"],
            created_at=row["created_at"],
            updated_at=row["updated_at"],
        )

    async def open_intent(
        self,
        ask: Ask,
        page: ResolvedPage,
        *,
        scope: str,
        outcome: Outcome,
        generation_id: UUID | None,
    ) -> Request | None:
        """Write down what is about to be charged; None when the request_id is taken."""
        return await self._intents.submit(
            (
                ask.request_id,
                ask.user_id,
                page.pdf_hash,
                page.page,
                ask.locale,
                uuid4(),
                outcome,
                generation_id,
                scope,
                ask.background,
                ask.kind,
            )
        )

    async def _open_intents(self, intents: Sequence[_Intent]) -> list[Request | None]:
        async with self._database.connection() as connection:
            # In the order of ids: twins that arrive at two replicas do not wait for each other.
            ordered = sorted(intents, key=lambda intent: intent[0])
            rows = await connection.fetch(OPEN_INTENTS, *columns(ordered), self._clocks.hold)
        # Of two with the same id only one was written: the nonce tells whose.
        opened = {row["nonce"]: request_from(row) for row in rows}
        return [opened.get(intent[_NONCE]) for intent in intents]

    async def take_over_intent(self, request_id: UUID) -> Request | None:
        """Go on with an intent that nobody holds any more."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(
                TAKE_OVER_INTENT, request_id, uuid4(), self._clocks.hold
            )
        return request_from(row) if row else None

    async def give_up_intent(self, request_id: UUID, nonce: UUID) -> None:
        """Let the next call with this id, or the sweep, go on at once."""
        async with self._database.connection() as connection:
            await connection.execute(GIVE_UP_INTENT, request_id, nonce)

    async def drop_intent(self, request_id: UUID, nonce: UUID) -> None:
        async with self._database.connection() as connection:
            await connection.execute(DROP_INTENT, request_id, nonce)

    async def abort_stale_intents(self) -> int:
        async with self._database.transaction() as connection:
            tag = await connection.execute(ABORT_STALE_INTENTS, self._clocks.intent)
        return int(tag.rpartition(" ")[2])

    async def has_asked(self, generation_id: UUID, user_id: str) -> bool:
        async with self._database.connection() as connection:
            return await connection.fetchval(HAS_ASKED, generation_id, user_id) is not None


def request_from(row: asyncpg.Record) -> Request:
    return Request(
        request_id=row["request_id"],
        user_id=row["user_id"],
        pdf_hash=row["pdf_hash"],
        page=row["page"],
        locale=row["locale"],
        state=RequestState(row["state"]),
        nonce=row["nonce"],
        outcome=Outcome(row["outcome"]),
        generation_id=row["generation_id"],
        scope=row["scope"],
        background=row["background"],
        kind=row["kind"],
    )


def columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
