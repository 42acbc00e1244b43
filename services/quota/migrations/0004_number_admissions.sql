-- Numbers each user's admissions to an endpoint. How many lie in a window is then the difference of two numbers, found
-- by two index look-ups however full the window is.
ALTER TABLE quota.ai_request_log ADD COLUMN sequence bigint NOT NULL DEFAULT 0;

UPDATE quota.ai_request_log AS target
SET sequence = numbered.sequence
FROM (
    SELECT ctid, row_number() OVER (PARTITION BY user_id, endpoint ORDER BY admitted_at) AS sequence
    FROM quota.ai_request_log
) AS numbered
WHERE target.ctid = numbered.ctid;

-- An older version that does not number must fail rather than miscount.
-- squawk-ignore ban-drop-default
ALTER TABLE quota.ai_request_log ALTER COLUMN sequence DROP DEFAULT;

-- The table holds a day and is rewritten above anyway: nothing is gained by building the index beside it.
-- Serves quota.windows_of and the search for the entry that must leave.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ai_request_log_by_window_idx
    ON quota.ai_request_log (user_id, endpoint, admitted_at, sequence);

-- squawk-ignore require-concurrent-index-deletion
DROP INDEX quota.ai_request_log_by_user_idx;
