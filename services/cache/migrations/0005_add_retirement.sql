-- squawk-ignore-file require-concurrent-index-creation, require-concurrent-index-deletion
-- Results can be taken out of service without leaving their final state: who paid for them can still read them.
ALTER TABLE cache.generations
    ADD COLUMN retired_at timestamptz,
    ADD COLUMN retired_reason text,
    -- Written in batches, minutes late: good enough to see what is in use.
    ADD COLUMN last_accessed_at timestamptz,
    ADD CONSTRAINT generation_retired_is_ready CHECK (retired_at IS NULL OR status = 'ready') NOT VALID,
    ADD CONSTRAINT generation_retired_has_reason
        CHECK ((retired_at IS NULL) = (retired_reason IS NULL)) NOT VALID;

-- Decides single-flight: a second live generation of the same key is impossible. Serves FIND_LIVE.
CREATE UNIQUE INDEX generation_one_live_idx ON cache.generations
    (pdf_hash, page, locale, kind, prompt_version, effective_mode, model, scope)
    WHERE status IN ('generating', 'ready') AND retired_at IS NULL;

DROP INDEX cache.generation_single_flight_idx;

-- Serves LIST_RETIRED and DELETE_ENDED.
CREATE INDEX generation_retired_idx ON cache.generations (retired_at) WHERE retired_at IS NOT NULL;

-- Serves FIND_STALE, which finds what is in service by generation_one_live_idx.
CREATE INDEX generation_retired_pages_idx ON cache.generations (pdf_hash, page, locale)
    WHERE retired_at IS NOT NULL;
