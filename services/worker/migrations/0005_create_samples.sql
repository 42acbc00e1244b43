-- How long requests took: one row each, kept for two weeks, and what they come to by hour and day.
CREATE TABLE worker.sticker_latency_samples (
    kind text NOT NULL,
    pdf_hash text NOT NULL,
    page integer NOT NULL,
    locale text NOT NULL,
    effective_mode text NOT NULL,
    outcome text NOT NULL,
    cache_hit boolean NOT NULL,
    latency_ms integer NOT NULL,
    images_count integer NOT NULL,
    -- 0 for a hit.
    chunks integer NOT NULL,
    -- When the result was there.
    created_at timestamptz NOT NULL,
    CONSTRAINT sample_outcome_is_known CHECK (outcome IN ('generated', 'joined', 'cached')),
    CONSTRAINT sample_hit_is_cached CHECK (cache_hit = (outcome = 'cached')),
    CONSTRAINT sample_numbers_are_not_negative
        CHECK (latency_ms >= 0 AND images_count >= 0 AND chunks >= 0)
);

-- Serves ROLL_UP and DELETE_OLD_SAMPLES. The only index: samples are written far more often than read.
CREATE INDEX latency_samples_by_time_idx ON worker.sticker_latency_samples (created_at);

-- Batches that were recorded, so that a repeated one counts once.
CREATE TABLE worker.sample_batches (
    batch_id uuid PRIMARY KEY,
    recorded_at timestamptz NOT NULL DEFAULT now()
);

-- Serves DELETE_OLD_BATCHES.
CREATE INDEX sample_batches_by_time_idx ON worker.sample_batches (recorded_at);

-- Hours in which something happened. Whoever writes into one takes its mark away, in the same transaction; whoever
-- rolls it up holds its row until the mark is set: nothing is forgotten, whichever comes first.
CREATE TABLE worker.metric_hours (
    hour timestamptz PRIMARY KEY,
    rolled_up_at timestamptz
);

-- Serves CHOOSE_DAY: the hours that are left to do.
CREATE INDEX metric_hours_open_idx ON worker.metric_hours (hour) WHERE rolled_up_at IS NULL;

CREATE TABLE worker.sticker_metrics (
    span text NOT NULL,
    begins_at timestamptz NOT NULL,
    -- Empty dimensions mean all of them.
    kind text NOT NULL,
    pdf_hash text NOT NULL,
    locale text NOT NULL,
    effective_mode text NOT NULL,
    cache_hits bigint NOT NULL,
    cache_misses bigint NOT NULL,
    joins bigint NOT NULL,
    failures bigint NOT NULL,
    total_generation_ms bigint NOT NULL,
    -- Of misses and joins; 0 where there were none.
    p50_generation_ms integer NOT NULL,
    p95_generation_ms integer NOT NULL,
    p99_generation_ms integer NOT NULL,
    p50_hit_ms integer NOT NULL,
    p95_hit_ms integer NOT NULL,
    p99_hit_ms integer NOT NULL,
    total_images bigint NOT NULL,
    total_chunks bigint NOT NULL,
    -- {"MODEL_UNAVAILABLE": 3}
    error_counts jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- Serves ROLL_UP, READ_DAY and READ_HOURS.
    CONSTRAINT metrics_are_counted_once
        PRIMARY KEY (begins_at, span, kind, pdf_hash, locale, effective_mode),
    CONSTRAINT metrics_span_is_known CHECK (span IN ('hour', 'day'))
);
