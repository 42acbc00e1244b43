"""SQL for requests: intents, attaching them to generations, and the refunds that follow."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

import asyncpg

from services.cache.domain import (
    Ask,
    Attached,
    Generation,
    Key,
    Lane,
    Outcome,
    Refund,
    Request,
    RequestRecord,
    RequestState,
    ResolvedPage,
    Status,
)
from services.cache.generation_store import (
    FIND_LIVE,
    generation_columns,
    generation_from,
    key_values,
    present_turn,
)
from services.cache.job_domain import Clocks
from services.runtime.batching import Batcher
from services.runtime.database import Connection, Database

# A part of statements, not one itself: lower case keeps it out of the list of statements.
request_columns = """request_id, user_id, pdf_hash, page, locale, state, nonce, outcome,
          generation_id, scope, background"""

OPEN_INTENTS = f"""
INSERT INTO cache.requests (
    request_id, user_id, pdf_hash, page, locale, nonce, outcome, generation_id, scope, background,
    held_until
)
SELECT intent.request_id, intent.user_id, intent.pdf_hash, intent.page, intent.locale,
       intent.nonce, intent.outcome, intent.generation_id, intent.scope, intent.background,
       now() + $11::interval
FROM unnest(
    $1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::uuid[], $7::text[],
    $8::uuid[], $9::text[], $10::boolean[]
) AS intent (
    request_id, user_id, pdf_hash, page, locale, nonce, outcome, generation_id, scope, background
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

# Owners take turns: a new job is served one round after its owner's last one, but not before the
# present round, which is that of the first job still waiting in its lane.
INSERT_GENERATION = f"""
INSERT INTO cache.generations (
    kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
    context_fingerprint, owner, lane, turn
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, greatest(
    coalesce((
        SELECT own.turn + 1
        FROM cache.generations AS own
        WHERE own.status = 'generating' AND own.turn IS NOT NULL
          AND own.owner = $11 AND own.lane = $12
        ORDER BY own.turn DESC
        LIMIT 1
    ), 0),
    {present_turn("$12")}
))
ON CONFLICT (pdf_hash, page, locale, kind, prompt_version, effective_mode, model, scope)
    WHERE status IN ('generating', 'ready') AND retired_at IS NULL
DO NOTHING
RETURNING {generation_columns}
"""

# Somebody waits for what nobody waited for. A statement of its own, after joining: joiners hold the
# row together, and two who both wanted to change it would wait for each other.
LIFT_GENERATION = f"""
UPDATE cache.generations AS job
SET lane = 0, turn = {present_turn("0")}
WHERE job.generation_id = $1 AND job.status = 'generating' AND job.lane > 0
  AND job.turn IS NOT NULL
"""

# Shared locks: many may join at once, but the generation cannot end before they are written down.
LOCK_LIVE = FIND_LIVE + " FOR SHARE"

# In the order of ids, like those who end generations: nobody waits for somebody who waits for him.
LOCK_GENERATIONS = f"""
SELECT {generation_columns}
FROM cache.generations
WHERE generation_id = ANY($1::uuid[])
ORDER BY generation_id
FOR SHARE
"""

JOIN_REQUESTS = """
UPDATE cache.requests AS request
SET state = joiner.state, units = joiner.units, updated_at = now()
FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::integer[], $5::text[])
    AS joiner (request_id, nonce, generation_id, units, state)
WHERE request.request_id = joiner.request_id AND request.state = 'intent'
  AND request.nonce = joiner.nonce AND request.generation_id = joiner.generation_id
RETURNING request.request_id, request.nonce, request.generation_id
"""

# Who joined what had failed by then gets back what it paid.
INSERT_REFUNDS_OF_FAILED = """
INSERT INTO cache.outbox (request_id, user_id, reason, generation_id)
SELECT request.request_id, request.user_id, 'generation_failed', request.generation_id
FROM cache.requests AS request
WHERE request.request_id = ANY($1::uuid[]) AND request.state = 'failed'
RETURNING outbox_id, request_id, user_id, reason, served_as, generation_id
"""

ATTACH_REQUEST = """
UPDATE cache.requests
SET state = $2, outcome = $3, generation_id = $4, units = $5, updated_at = now()
WHERE request_id = $1
"""

INSERT_REFUND = """
INSERT INTO cache.outbox (request_id, user_id, reason, served_as, generation_id)
VALUES ($1, $2, $3, $4, $5)
RETURNING outbox_id, request_id, user_id, reason, served_as, generation_id
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

READ_REFUNDS = """
SELECT outbox_id, request_id, user_id, reason, served_as, generation_id
FROM cache.outbox
WHERE outbox_id > $1
ORDER BY outbox_id
LIMIT $2
"""

DELETE_REFUNDS = "DELETE FROM cache.outbox WHERE outbox_id = ANY($1::bigint[])"

HAS_ASKED = "SELECT 1 FROM cache.requests WHERE generation_id = $1 AND user_id = $2 LIMIT 1"


# The columns of OPEN_INTENTS and JOIN_REQUESTS, one request a row.
_Intent = tuple[UUID, str, str, int, str, UUID, Outcome, UUID | None, str, bool]
_Joiner = tuple[UUID, UUID, UUID, int]
_NONCE = 5


class RequestStore:
    """Requests and the outbox."""

    def __init__(self, database: Database, clocks: Clocks) -> None:
        self._database = database
        self._clocks = clocks
        # Every call with an id of its own asks; under load many are answered by one query.
        self._reads = Batcher(self._read_requests)
        self._intents = Batcher(self._open_intents)
        self._joiners = Batcher(self._join_many)

    async def read_request(self, request_id: UUID) -> Request | None:
        return await self._reads.submit(request_id)

    async def _read_requests(self, request_ids: Sequence[UUID]) -> list[Request | None]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(READ_REQUESTS, request_ids)
        found = {row["request_id"]: _request(row) for row in rows}
        return [found.get(request_id) for request_id in request_ids]

    async def read_record(self, request_id: UUID) -> RequestRecord | None:
        """All that is on record about a request."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_RECORD, request_id)
        if row is None:
            return None
        return RequestRecord(
            request=_request(row),
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
            )
        )

    async def _open_intents(self, intents: Sequence[_Intent]) -> list[Request | None]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(OPEN_INTENTS, *_columns(intents), self._clocks.hold)
        # Of two with the same id only one was written: the nonce tells whose.
        opened = {row["nonce"]: _request(row) for row in rows}
        return [opened.get(intent[_NONCE]) for intent in intents]

    async def take_over_intent(self, request_id: UUID) -> Request | None:
        """Go on with an intent that nobody holds any more."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(
                TAKE_OVER_INTENT, request_id, uuid4(), self._clocks.hold
            )
        return _request(row) if row else None

    async def give_up_intent(self, request_id: UUID, nonce: UUID) -> None:
        """Let the next call with this id, or the sweep, go on at once."""
        async with self._database.connection() as connection:
            await connection.execute(GIVE_UP_INTENT, request_id, nonce)

    async def drop_intent(self, request_id: UUID, nonce: UUID) -> None:
        async with self._database.connection() as connection:
            await connection.execute(DROP_INTENT, request_id, nonce)

    async def join(
        self, request_id: UUID, *, nonce: UUID, generation_id: UUID, units: int
    ) -> Attached | None:
        """Turn an intent that was charged for joining into a waiter on the generation it names.

        It gets this one even if it has ended meanwhile. None as for `attach`.
        """
        return await self._joiners.submit((request_id, nonce, generation_id, units))

    async def _join_many(self, joiners: Sequence[_Joiner]) -> list[Attached | None]:
        async with self._database.transaction() as connection:
            wanted = {generation_id for _, _, generation_id, _ in joiners}
            rows = await connection.fetch(LOCK_GENERATIONS, list(wanted))
            generations = {row["generation_id"]: generation_from(row) for row in rows}
            assert len(generations) == len(wanted), "generations outlive the intents that name them"
            states = [_state(generations[generation_id]) for _, _, generation_id, _ in joiners]
            joined = await connection.fetch(JOIN_REQUESTS, *_columns(joiners), states)
            refunds = await connection.fetch(
                INSERT_REFUNDS_OF_FAILED, [row["request_id"] for row in joined]
            )
        due = {row["request_id"]: _refund(row) for row in refunds}
        attached = {
            row["nonce"]: Attached(
                generation=generations[row["generation_id"]],
                outcome=Outcome.JOINED,
                created=False,
                refund=due.get(row["request_id"]),
            )
            for row in joined
        }
        return [attached.get(nonce) for _, nonce, _, _ in joiners]

    async def attach(
        self, request_id: UUID, *, nonce: UUID, key: Key, page: ResolvedPage, units: int
    ) -> Attached | None:
        """Turn a charged intent into a waiter on a live generation, making one if there is none.

        None when the intent is no longer the caller's: taken over, aborted or attached already.
        """
        async with self._database.transaction() as connection:
            row = await connection.fetchrow(LOCK_REQUEST, request_id)
            if row is None or row["state"] != RequestState.INTENT or row["nonce"] != nonce:
                return None
            request = _request(row)
            generation, created = await _find_or_create(connection, request, key, page)
            if created:
                attached = Attached(
                    generation=generation, outcome=Outcome.GENERATED, created=True, refund=None
                )
            else:
                attached = await _reprice(connection, request, generation)
            await connection.execute(
                ATTACH_REQUEST,
                request_id,
                _state(generation),
                attached.outcome,
                generation.generation_id,
                None if attached.refund else units,
            )
            return attached

    async def lift(self, generation_id: UUID) -> None:
        """Move a job that somebody waits for now into the interactive lane."""
        async with self._database.connection() as connection:
            await connection.execute(LIFT_GENERATION, generation_id)

    async def abort_stale_intents(self) -> int:
        async with self._database.transaction() as connection:
            tag = await connection.execute(ABORT_STALE_INTENTS, self._clocks.intent)
        return int(tag.rpartition(" ")[2])

    async def read_refunds(self, *, after: int, limit: int) -> list[Refund]:
        async with self._database.connection() as connection:
            return [_refund(row) for row in await connection.fetch(READ_REFUNDS, after, limit)]

    async def delete_refunds(self, outbox_ids: Sequence[int]) -> None:
        async with self._database.connection() as connection:
            await connection.execute(DELETE_REFUNDS, outbox_ids)

    async def has_asked(self, generation_id: UUID, user_id: str) -> bool:
        async with self._database.connection() as connection:
            return await connection.fetchval(HAS_ASKED, generation_id, user_id) is not None


async def _find_or_create(
    connection: Connection, request: Request, key: Key, page: ResolvedPage
) -> tuple[Generation, bool]:
    while True:  # until either statement finds it: the live one may end between the two
        row = await connection.fetchrow(
            INSERT_GENERATION,
            *key_values(key),
            page.images_count,
            page.context_fingerprint,
            request.user_id,
            Lane.BACKGROUND if request.background else Lane.INTERACTIVE,
        )
        if row is not None:
            return generation_from(row), True
        row = await connection.fetchrow(LOCK_LIVE, *key_values(key))
        if row is not None:
            return generation_from(row), False


async def _reprice(connection: Connection, request: Request, generation: Generation) -> Attached:
    """The request was charged for making what somebody else has made: it pays for that instead."""
    ready = generation.status is Status.READY
    outcome = Outcome.CACHED if ready else Outcome.JOINED
    row = await connection.fetchrow(
        INSERT_REFUND,
        request.request_id,
        request.user_id,
        "repriced",
        outcome,
        generation.generation_id,
    )
    assert row is not None
    return Attached(generation=generation, outcome=outcome, created=False, refund=_refund(row))


def _state(generation: Generation) -> RequestState:
    return {
        Status.GENERATING: RequestState.WAITING,
        Status.READY: RequestState.SERVED,
        Status.FAILED: RequestState.FAILED,
    }[generation.status]


def _request(row: asyncpg.Record) -> Request:
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
    )


def _refund(row: asyncpg.Record) -> Refund:
    return Refund(
        outbox_id=row["outbox_id"],
        request_id=row["request_id"],
        user_id=row["user_id"],
        reason=row["reason"],
        served_as=Outcome(row["served_as"]) if row["served_as"] else None,
        generation_id=row["generation_id"],
    )


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
