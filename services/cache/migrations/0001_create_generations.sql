-- One piece of AI work: the result cache and the job queue in one table.
CREATE TABLE cache.generations (
    generation_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind text NOT NULL,
    pdf_hash text NOT NULL,
    page integer NOT NULL,
    prompt_version text NOT NULL,
    locale text NOT NULL,
    effective_mode text NOT NULL,
    model text NOT NULL,
    scope text NOT NULL,
    images_count integer NOT NULL,
    status text NOT NULL DEFAULT 'generating',
    stage text NOT NULL DEFAULT 'queued',
    done integer NOT NULL DEFAULT 0,
    total integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    run_after timestamptz NOT NULL DEFAULT now(),
    leased_by text,
    leased_until timestamptz,
    deadline_at timestamptz,
    stickers jsonb,
    error_reason text,
    error_message text,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    completed_at timestamptz,
    CONSTRAINT generation_status_is_known CHECK (status IN ('generating', 'ready', 'failed')),
    CONSTRAINT generation_stage_is_known CHECK (
        stage IN ('queued', 'reading', 'analysing_images', 'explaining', 'retrying', 'ready', 'failed')
    ),
    CONSTRAINT generation_hash_is_sha256 CHECK (pdf_hash ~ '^[0-9a-f]{64}$'),
    CONSTRAINT generation_page_is_positive CHECK (page >= 1),
    CONSTRAINT generation_mode_is_known CHECK (effective_mode IN ('text_only', 'with_images')),
    CONSTRAINT generation_attempts_are_not_negative CHECK (attempts >= 0),
    CONSTRAINT generation_ready_has_result CHECK ((status = 'ready') = (stickers IS NOT NULL)),
    CONSTRAINT generation_failed_has_reason CHECK (status <> 'failed' OR error_reason IS NOT NULL),
    CONSTRAINT generation_ended_has_time CHECK ((status = 'generating') = (completed_at IS NULL)),
    CONSTRAINT generation_lease_is_whole
        CHECK ((leased_by IS NULL) = (leased_until IS NULL) AND (leased_by IS NULL) = (deadline_at IS NULL)),
    CONSTRAINT generation_only_live_work_is_leased CHECK (leased_by IS NULL OR status = 'generating')
);

-- Decides single-flight: a second live generation of the same key is impossible. Serves FIND_LIVE.
CREATE UNIQUE INDEX generation_single_flight_idx ON cache.generations
    (pdf_hash, page, locale, kind, prompt_version, effective_mode, model, scope)
    WHERE status IN ('generating', 'ready');

-- Serves LEASE_JOBS and READ_QUEUE. Lease columns stay out so that heartbeats remain HOT updates.
CREATE INDEX generation_waiting_idx ON cache.generations (run_after, generation_id)
    WHERE status = 'generating';
