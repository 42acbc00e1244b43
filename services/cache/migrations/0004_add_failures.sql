-- squawk-ignore-file require-concurrent-index-creation
-- What went wrong, attempt by attempt, and whether it went wrong for good.
ALTER TABLE cache.generations
    -- [{"attempt", "reason", "message", "failed_at"}], oldest first.
    ADD COLUMN failures jsonb NOT NULL DEFAULT '[]',
    -- Trying again cannot help: the failure is remembered, and nobody pays for it again for a while.
    ADD COLUMN failed_for_good boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT generation_for_good_is_failed CHECK (NOT failed_for_good OR status = 'failed') NOT VALID;

-- Serves FIND_REMEMBERED_FAILURE.
CREATE INDEX generation_failed_for_good_idx ON cache.generations (pdf_hash, page, completed_at)
    WHERE failed_for_good;

-- Serves DELETE_ENDED.
CREATE INDEX generation_failed_idx ON cache.generations (completed_at) WHERE status = 'failed';
