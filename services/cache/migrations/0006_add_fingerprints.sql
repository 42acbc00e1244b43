-- squawk-ignore-file require-concurrent-index-creation
-- The same page in another file: what the model saw is the same, so the result is too.
ALTER TABLE cache.generations
    -- Identity of the page and of the neighbours given as context; empty when it is not known.
    ADD COLUMN context_fingerprint text NOT NULL DEFAULT '',
    -- The generation whose result this one has taken over.
    ADD COLUMN copied_from uuid,
    ADD CONSTRAINT generation_copy_is_ready CHECK (copied_from IS NULL OR status = 'ready') NOT VALID;

-- Serves ADOPT_TWIN.
CREATE INDEX generation_fingerprint_idx ON cache.generations (context_fingerprint)
    WHERE status = 'ready' AND retired_at IS NULL AND context_fingerprint <> '';

-- Serves RETIRE_GENERATIONS: copies go with what they were taken from.
CREATE INDEX generation_copies_idx ON cache.generations (copied_from) WHERE copied_from IS NOT NULL;
