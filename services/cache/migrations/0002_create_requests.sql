-- One caller's ask. It is an intent before the charge, so that a crash in between can be found and undone.
CREATE TABLE cache.requests (
    request_id uuid PRIMARY KEY,
    user_id text NOT NULL,
    pdf_hash text NOT NULL,
    page integer NOT NULL,
    locale text NOT NULL,
    state text NOT NULL DEFAULT 'intent',
    -- Whoever took the intent over last; attaching checks it. Others may take it over from `held_until` on.
    nonce uuid NOT NULL,
    held_until timestamptz NOT NULL,
    outcome text NOT NULL,
    -- For an intent to join: the generation it wants. Afterwards: the generation it has.
    generation_id uuid REFERENCES cache.generations (generation_id),
    -- Null when Quota knows better (the request was repriced).
    units integer,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT request_state_is_known
        CHECK (state IN ('intent', 'waiting', 'served', 'failed', 'aborted')),
    CONSTRAINT request_outcome_is_known CHECK (outcome IN ('generated', 'joined', 'cached')),
    CONSTRAINT request_attached_has_generation
        CHECK (state IN ('intent', 'aborted') OR generation_id IS NOT NULL)
);

-- Serves SERVE_WAITERS, FAIL_WAITERS and HAS_ASKED.
CREATE INDEX requests_by_generation_idx ON cache.requests (generation_id, user_id);

-- Serves ABORT_STALE_INTENTS.
CREATE INDEX requests_open_intents_idx ON cache.requests (updated_at) WHERE state = 'intent';

-- Refunds due, written in the transaction that makes them due and kept until Quota has acknowledged them.
CREATE TABLE cache.outbox (
    outbox_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id uuid NOT NULL,
    user_id text NOT NULL,
    reason text NOT NULL,
    served_as text,
    generation_id uuid,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT outbox_reason_is_known
        CHECK (reason IN ('generation_failed', 'request_aborted', 'repriced')),
    CONSTRAINT outbox_repriced_says_how CHECK ((reason = 'repriced') = (served_as IS NOT NULL))
);
