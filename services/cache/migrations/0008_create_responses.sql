-- Responses kept for a while, found by what was asked for.
CREATE TABLE cache.ai_responses_cache (
    -- SHA-256 of the canonical encoding of operation, input and scope.
    cache_key text PRIMARY KEY,
    operation text NOT NULL,
    scope text NOT NULL,
    response bytea NOT NULL,
    hit_count bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    CONSTRAINT response_key_is_sha256 CHECK (cache_key ~ '^[0-9a-f]{64}$'),
    CONSTRAINT response_hits_are_counted CHECK (hit_count >= 0)
);

-- Serves DELETE_RESPONSES.
CREATE INDEX responses_by_operation_idx ON cache.ai_responses_cache (operation, scope);

-- Serves DELETE_EXPIRED_RESPONSES.
CREATE INDEX responses_by_expiry_idx ON cache.ai_responses_cache (expires_at);
