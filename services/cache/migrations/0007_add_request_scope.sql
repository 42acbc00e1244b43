-- squawk-ignore-file require-concurrent-index-creation
-- Charged for shared or private work: attaching keeps to what was charged, whatever the user has chosen since.
ALTER TABLE cache.requests
    ADD COLUMN scope text NOT NULL DEFAULT 'shared',
    -- Nobody is waiting for it.
    ADD COLUMN background boolean NOT NULL DEFAULT false;

-- Serves DELETE_SETTLED_REQUESTS.
CREATE INDEX requests_settled_idx ON cache.requests (updated_at)
    WHERE state IN ('served', 'failed', 'aborted');
