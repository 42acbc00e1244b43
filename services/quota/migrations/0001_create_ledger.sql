-- Who may still ask for how much. The row is also the lock under which a user's limits are decided.
CREATE TABLE quota.accounts (
    user_id text PRIMARY KEY,
    balance_units bigint NOT NULL,
    period_ends_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT account_balance_is_never_negative CHECK (balance_units >= 0)
);

-- The ledger: one row per request_id, forever. A void row was refunded before it was charged, so that a
-- charge that arrives late cannot land.
CREATE TABLE quota.explain_requests (
    request_id uuid PRIMARY KEY,
    user_id text NOT NULL,
    endpoint text,
    outcome text,
    generation_id uuid,
    pdf_hash text,
    page integer,
    locale text,
    effective_mode text,
    quota_units bigint NOT NULL,
    status text NOT NULL,
    refund_reason text,
    created_at timestamptz NOT NULL DEFAULT now(),
    refunded_at timestamptz,
    CONSTRAINT explain_request_status_is_known CHECK (status IN ('charged', 'refunded', 'void')),
    CONSTRAINT explain_request_outcome_is_known
        CHECK (outcome IN ('generated', 'joined', 'cached')),
    CONSTRAINT explain_request_units_are_not_negative CHECK (quota_units >= 0),
    CONSTRAINT explain_request_void_bought_nothing
        CHECK ((status = 'void') = (endpoint IS NULL) AND (status <> 'void' OR quota_units = 0)),
    CONSTRAINT explain_request_refund_has_reason
        CHECK ((status = 'charged') = (refunded_at IS NULL))
);

-- Every movement of units. Append-only: not even the owner may change a line. The sum per user is the balance.
CREATE TABLE quota.ledger_entries (
    entry_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id text NOT NULL,
    request_id uuid,
    kind text NOT NULL,
    units bigint NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT ledger_entry_kind_is_known
        CHECK (kind IN ('grant', 'expire', 'charge', 'refund', 'reprice', 'void')),
    CONSTRAINT ledger_entry_sign_fits_kind
        CHECK (CASE WHEN kind IN ('charge', 'expire') THEN units <= 0 ELSE units >= 0 END)
);

-- At most one of each per request: a second refund is impossible whatever the code does.
CREATE UNIQUE INDEX ledger_entry_once_per_request_idx
    ON quota.ledger_entries (request_id, kind) WHERE request_id IS NOT NULL;

-- Serves the audit of a balance against its entries.
CREATE INDEX ledger_entries_by_user_idx ON quota.ledger_entries (user_id, entry_id);

REVOKE UPDATE, DELETE, TRUNCATE ON quota.ledger_entries FROM CURRENT_USER;
