"""SQL of what models cost: operations, spending, budgets, and what sharing saved."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from uuid import UUID

from services.quota.domain import Budget, Budgets, CostReport, Costs, Operation, Rules
from services.quota.ledger_store import acting_for
from services.runtime.database import Connection, Database

LIST_PRICED_MODELS = """
SELECT DISTINCT price.model
FROM quota.model_prices AS price
WHERE price.model = ANY ($1::text[]) AND price.valid_from <= clock_timestamp()
"""

# A request is charged before its generation has an id, so the charge is told which one it became:
# the oldest one that started this very page and has none yet. Those that turned out to join were
# repriced, and carry the id already.
NAME_GENERATIONS = """
WITH operation AS (
    SELECT DISTINCT * FROM unnest($1::uuid[], $2::text[], $3::integer[], $4::text[], $5::text[])
        AS given (generation_id, pdf_hash, page, locale, effective_mode)
), nameless AS (
    SELECT operation.*, row_number() OVER (
        PARTITION BY pdf_hash, page, locale, effective_mode ORDER BY generation_id
    ) AS place
    FROM operation
    WHERE NOT EXISTS (
        SELECT FROM quota.explain_requests AS named
        WHERE named.generation_id = operation.generation_id AND named.outcome = 'generated'
    )
)
UPDATE quota.explain_requests AS request
SET generation_id = nameless.generation_id
FROM nameless
CROSS JOIN LATERAL (
    SELECT candidate.request_id FROM quota.explain_requests AS candidate
    WHERE candidate.outcome = 'generated' AND candidate.generation_id IS NULL
        AND candidate.pdf_hash = nameless.pdf_hash AND candidate.page = nameless.page
        AND candidate.locale = nameless.locale
        AND candidate.effective_mode = nameless.effective_mode
        AND candidate.refund_reason IS DISTINCT FROM 'request_aborted'
    ORDER BY candidate.created_at OFFSET nameless.place - 1 LIMIT 1
) AS started
WHERE request.request_id = started.request_id AND request.generation_id IS NULL
"""

# Prices are those of today, rounded up to a whole nano-dollar. What was recorded before is left as
# it is and not summed again.
RECORD_OPERATIONS = """
WITH recorded AS (
    INSERT INTO quota.ai_operations
        (operation_id, user_id, generation_id, attempt, endpoint, pdf_hash, page, model,
         input_tokens, cached_input_tokens, output_tokens, duration_ms, outcome, cost_nanodollars,
         created_at)
    SELECT given.operation_id, coalesce(given.user_id, payer.user_id), given.generation_id,
           given.attempt, given.endpoint, given.pdf_hash, given.page, given.model,
           given.input_tokens, given.cached_input_tokens, given.output_tokens, given.duration_ms,
           given.outcome,
           ((given.input_tokens - given.cached_input_tokens) * price.input_nanodollars
               + given.cached_input_tokens * price.cached_input_nanodollars
               + given.output_tokens * price.output_nanodollars + 999999) / 1000000,
           $16
    FROM unnest($1::uuid[], $2::text[], $3::uuid[], $4::integer[], $5::text[], $6::text[],
                $7::integer[], $8::text[], $9::text[], $10::text[], $11::bigint[], $12::bigint[],
                $13::bigint[], $14::bigint[], $15::text[])
        AS given (operation_id, user_id, generation_id, attempt, endpoint, pdf_hash, page, locale,
                  effective_mode, model, input_tokens, cached_input_tokens, output_tokens,
                  duration_ms, outcome)
    CROSS JOIN LATERAL (
        SELECT * FROM quota.model_prices AS dated
        WHERE dated.model = given.model AND dated.valid_from <= $16
        ORDER BY dated.valid_from DESC LIMIT 1
    ) AS price
    LEFT JOIN LATERAL (
        SELECT request.user_id FROM quota.explain_requests AS request
        WHERE request.generation_id = given.generation_id AND request.outcome = 'generated'
        ORDER BY request.created_at LIMIT 1
    ) AS payer ON true
    ON CONFLICT (operation_id) DO NOTHING
    RETURNING user_id, generation_id, pdf_hash, cost_nanodollars
)
-- In one order, so that two batches cannot wait for each other.
INSERT INTO quota.spending AS spent (kind, subject, cost_nanodollars)
SELECT part.kind, part.subject, sum(recorded.cost_nanodollars)
FROM recorded
CROSS JOIN LATERAL (VALUES
    ('day', to_char($16 AT TIME ZONE 'UTC', 'YYYY-MM-DD')),
    ('document', recorded.pdf_hash),
    ('generation', recorded.generation_id::text),
    ('user_month', recorded.user_id || to_char($16 AT TIME ZONE 'UTC', ' YYYY-MM'))
) AS part (kind, subject)
WHERE part.subject IS NOT NULL
GROUP BY part.kind, part.subject
ORDER BY part.kind, part.subject
ON CONFLICT (kind, subject) DO UPDATE
SET cost_nanodollars = spent.cost_nanodollars + excluded.cost_nanodollars
"""

READ_OPERATION_COSTS = """
SELECT operation_id, cost_nanodollars
FROM quota.ai_operations
WHERE operation_id = ANY ($1::uuid[])
"""

READ_CLOCK = "SELECT clock_timestamp()"

_SUMS = """
       sum(line.operations)::bigint, sum(line.failed_operations)::bigint,
       sum(line.input_tokens)::bigint, sum(line.cached_input_tokens)::bigint,
       sum(line.output_tokens)::bigint, sum(line.cost_nanodollars)::bigint,
       sum(line.shared_requests)::bigint, sum(line.saved_nanodollars)::bigint
FROM quota.cost_lines AS line
WHERE ($1::text IS NULL OR line.user_id = $1) AND line.created_at >= $2 AND line.created_at < $3
"""

READ_COSTS_BY_DAY = f"""
SELECT to_char(line.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day, {_SUMS}
GROUP BY day
ORDER BY day
"""

READ_COSTS_BY_DOCUMENT = f"""
SELECT coalesce(line.pdf_hash, '') AS pdf_hash, {_SUMS}
GROUP BY 1
ORDER BY sum(line.cost_nanodollars + line.saved_nanodollars) DESC, 1
LIMIT 100
"""

READ_GENERATION_COSTS = """
SELECT subject, cost_nanodollars
FROM quota.spending
WHERE kind = 'generation' AND subject = ANY ($1::text[])
"""

READ_SPENDING = """
SELECT clock.now,
       date_trunc('month', clock.now, 'UTC') + interval '1 month' AS month_ends_at,
       date_trunc('day', clock.now, 'UTC') + interval '1 day' AS day_ends_at,
       (SELECT cost_nanodollars FROM quota.spending
        WHERE kind = 'user_month'
            AND subject = $1 || to_char(clock.now AT TIME ZONE 'UTC', ' YYYY-MM')) AS by_user,
       (SELECT cost_nanodollars FROM quota.spending
        WHERE kind = 'day'
            AND subject = to_char(clock.now AT TIME ZONE 'UTC', 'YYYY-MM-DD')) AS by_day,
       (SELECT cost_nanodollars FROM quota.spending
        WHERE kind = 'document' AND subject = $2) AS by_document
FROM clock_timestamp() AS clock (now)
"""


class CostStore:
    """Calls to models, and the money they took."""

    def __init__(self, database: Database, rules: Rules) -> None:
        self._database = database
        self._rules = rules

    async def find_unpriced(self, models: Sequence[str]) -> set[str]:
        """Those of the models that have no price."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_PRICED_MODELS, models)
        return set(models) - {row["model"] for row in rows}

    async def record_operations(self, operations: Sequence[Operation]) -> list[int]:
        """Record all of them, or nothing; what each has cost, in nano-dollars."""
        columns = list(zip(*operations, strict=True))
        generations, pages = columns[2], columns[5:9]
        async with self._database.transaction() as connection:
            now = await connection.fetchval(READ_CLOCK)
            await connection.execute(NAME_GENERATIONS, generations, *pages)
            await connection.execute(RECORD_OPERATIONS, *columns, now)
            rows = await connection.fetch(READ_OPERATION_COSTS, columns[0])
        costs = {row["operation_id"]: row["cost_nanodollars"] for row in rows}
        return [costs[operation.operation_id] for operation in operations]

    async def read_costs(
        self, user_id: str | None, begins_at: datetime | None, ends_at: datetime | None
    ) -> CostReport:
        """What was spent and saved; from the beginning of this month until now unless told."""
        async with self._reading(user_id) as connection:
            now: datetime = await connection.fetchval(READ_CLOCK)
            first = begins_at or now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
            span = (user_id, first, ends_at or now)
            days = await connection.fetch(READ_COSTS_BY_DAY, *span)
            documents = await connection.fetch(READ_COSTS_BY_DOCUMENT, *span)
        by_day = {row[0]: Costs(*tuple(row)[1:]) for row in days}
        return CostReport(
            begins_at=first,
            ends_at=ends_at or now,
            total=Costs(*(sum(column) for column in zip(*by_day.values(), strict=True))),
            days=by_day,
            documents={row[0]: Costs(*tuple(row)[1:]) for row in documents},
        )

    async def read_generation_costs(self, generation_ids: Sequence[UUID]) -> list[int]:
        """What each has cost so far, in nano-dollars."""
        subjects = [str(generation_id) for generation_id in generation_ids]
        async with self._database.connection() as connection:
            rows = await connection.fetch(READ_GENERATION_COSTS, subjects)
        costs = {row["subject"]: row["cost_nanodollars"] for row in rows}
        return [costs.get(subject, 0) for subject in subjects]

    async def read_budgets(self, user_id: str, pdf_hash: str) -> Budgets:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(READ_SPENDING, user_id, pdf_hash)
        assert row is not None
        rules = self._rules
        return Budgets(
            user=Budget(row["by_user"] or 0, rules.monthly_budget, row["month_ends_at"]),
            day=Budget(row["by_day"] or 0, rules.daily_ceiling, row["day_ends_at"]),
            document=Budget(row["by_document"] or 0, rules.document_ceiling),
        )

    @asynccontextmanager
    async def _reading(self, user_id: str | None) -> AsyncIterator[Connection]:
        """Behind the fence for one user; everybody's costs are read without it."""
        if user_id is not None:
            async with acting_for(self._database, user_id) as connection:
                yield connection
        else:
            async with self._database.connection() as connection:
                yield connection
