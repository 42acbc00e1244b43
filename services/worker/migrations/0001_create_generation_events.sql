-- What happened to a generation, in order; watchers of any replica read it.
CREATE TABLE worker.generation_events (
    generation_id uuid NOT NULL,
    -- Rises by one within a generation; given out under its advisory lock.
    sequence bigint NOT NULL,
    attempt integer NOT NULL,
    status text NOT NULL,
    stage text NOT NULL,
    done integer NOT NULL DEFAULT 0,
    total integer NOT NULL DEFAULT 0,
    error_reason text NOT NULL DEFAULT '',
    error_message text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Serves LIST_EVENTS, LIST_EVENTS_OF_MANY and GET_NEWEST_EVENT.
    PRIMARY KEY (generation_id, sequence),
    CONSTRAINT event_sequence_starts_at_one CHECK (sequence >= 1),
    CONSTRAINT event_attempt_is_not_negative CHECK (attempt >= 0),
    CONSTRAINT event_status_is_known CHECK (status IN ('generating', 'ready', 'failed')),
    CONSTRAINT event_stage_is_known CHECK (
        stage IN ('queued', 'reading', 'analysing_images', 'explaining', 'retrying', 'ready', 'failed')
    ),
    CONSTRAINT event_end_has_its_stage
        CHECK ((status = 'generating') = (stage NOT IN ('ready', 'failed'))),
    CONSTRAINT event_progress_is_within_total CHECK (done BETWEEN 0 AND total)
);

-- A generation ends once, whoever records it.
CREATE UNIQUE INDEX event_end_is_unique_idx ON worker.generation_events (generation_id)
WHERE status IN ('ready', 'failed');
