-- Every call to a model, failed ones too, with what it cost on the day it was made. Append-only.
CREATE TABLE quota.ai_operations (
    operation_id uuid PRIMARY KEY,
    -- Whose request made the call necessary; NULL where no charge tells.
    user_id text,
    generation_id uuid,
    attempt integer NOT NULL,
    endpoint text NOT NULL,
    pdf_hash text,
    page integer,
    model text NOT NULL,
    input_tokens bigint NOT NULL,
    cached_input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    duration_ms bigint NOT NULL,
    -- "ok", or why it failed.
    outcome text NOT NULL,
    cost_nanodollars bigint NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT ai_operation_counts_are_not_negative
        CHECK (input_tokens >= 0 AND output_tokens >= 0 AND duration_ms >= 0 AND attempt >= 0),
    CONSTRAINT ai_operation_cached_is_part_of_input
        CHECK (cached_input_tokens BETWEEN 0 AND input_tokens),
    CONSTRAINT ai_operation_cost_is_not_negative CHECK (cost_nanodollars >= 0)
);

-- Serves READ_COSTS for one user.
CREATE INDEX ai_operations_by_user_idx ON quota.ai_operations (user_id, created_at);
-- Serves READ_COSTS for everybody.
CREATE INDEX ai_operations_by_time_idx ON quota.ai_operations (created_at);

REVOKE UPDATE, DELETE, TRUNCATE ON quota.ai_operations FROM CURRENT_USER;

-- Running sums of ai_operations, so that ceilings and savings need no scan. `subject` is a UTC day ("2026-11-18"), a
-- document's hash, a generation's id, or a user and a UTC month ("alice 2026-11").
CREATE TABLE quota.spending (
    kind text NOT NULL,
    subject text NOT NULL,
    cost_nanodollars bigint NOT NULL,
    CONSTRAINT spending_is_summed_once PRIMARY KEY (kind, subject),
    CONSTRAINT spending_kind_is_known
        CHECK (kind IN ('day', 'document', 'generation', 'user_month')),
    CONSTRAINT spending_is_not_negative CHECK (cost_nanodollars >= 0)
);

-- Built in this transaction: there is no ledger yet that would be held up for long.

-- Serves REFUND_GENERATION (everyone who paid for it) and RECORD_OPERATIONS (who started it).
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX explain_requests_by_generation_idx
    ON quota.explain_requests (generation_id) WHERE generation_id IS NOT NULL;

-- Serves RECORD_OPERATIONS: a request is charged before its generation has an id.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX explain_requests_unnamed_idx
    ON quota.explain_requests (pdf_hash, page, locale, effective_mode)
    WHERE outcome = 'generated' AND generation_id IS NULL;
