"""SQL that attaches charged requests to generations, making those that do not exist yet."""

from collections.abc import Sequence
from uuid import UUID

from services.cache.domain import (
    Attached,
    Generation,
    Key,
    Lane,
    Outcome,
    Request,
    RequestState,
    ResolvedPage,
    Status,
    generation_started_by,
)
from services.cache.generation_store import (
    FIND_LIVE,
    generation_columns,
    generation_from,
    key_values,
    present_turn,
)
from services.cache.outbox_store import refund_from
from services.cache.request_store import LOCK_REQUEST, columns, request_from
from services.runtime.batching import Batcher
from services.runtime.database import Connection, Database
from services.runtime.tracing import traceparent

# Owners take turns: a new job is served one round after its owner's last one, but not before the
# present round, which is that of the first job still waiting in its lane.
INSERT_GENERATION = f"""
INSERT INTO cache.generations (
    kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
    context_fingerprint, owner, lane, generation_id, traceparent, turn
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, greatest(
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
SET lane = 0, turn = CASE WHEN job.turn IS NOT NULL THEN {present_turn("0")} END
WHERE job.generation_id = $1 AND job.status = 'generating' AND job.lane > 0
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


# The columns of JOIN_REQUESTS but the last, one request a row.
_Joiner = tuple[UUID, UUID, UUID, int]


class AttachStore:
    """Requests on their way from intent to waiter."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Crowds join: under load many are written down together.
        self._joiners = Batcher(self._join_many)

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
            joined = await connection.fetch(JOIN_REQUESTS, *columns(joiners), states)
            refunds = await connection.fetch(
                INSERT_REFUNDS_OF_FAILED, [row["request_id"] for row in joined]
            )
        due = {row["request_id"]: refund_from(row) for row in refunds}
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
            request = request_from(row)
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
            generation_started_by(request.request_id),
            traceparent() or None,
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
    return Attached(generation=generation, outcome=outcome, created=False, refund=refund_from(row))


def _state(generation: Generation) -> RequestState:
    return {
        Status.GENERATING: RequestState.WAITING,
        Status.READY: RequestState.SERVED,
        Status.FAILED: RequestState.FAILED,
    }[generation.status]
