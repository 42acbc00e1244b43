-- What the sliding windows count: one row per admitted request, kept for a day.
CREATE TABLE quota.ai_request_log (
    user_id text NOT NULL,
    endpoint text NOT NULL,
    admitted_at timestamptz NOT NULL
);

-- Serves READ_WINDOWS.
CREATE INDEX ai_request_log_by_user_idx ON quota.ai_request_log (user_id, admitted_at);
-- Serves PRUNE_WINDOWS.
CREATE INDEX ai_request_log_by_time_idx ON quota.ai_request_log (admitted_at);

-- Whether a user's results may be shared; no row means yes.
CREATE TABLE quota.user_preferences (
    user_id text PRIMARY KEY,
    share_to_cache boolean NOT NULL DEFAULT true,
    updated_at timestamptz NOT NULL DEFAULT now()
);
