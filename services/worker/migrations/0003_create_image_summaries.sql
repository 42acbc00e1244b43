-- What pictures show, each described once for all pages and documents it stands on. A description depends on nothing
-- but the picture and how it was asked for, so whoever has the same picture may be told the same; but what was made
-- for a user who does not share is kept for that user.
CREATE TABLE worker.image_summaries (
    -- SHA-256 of the picture's content.
    digest text NOT NULL,
    prompt_version text NOT NULL,
    model text NOT NULL,
    -- 'shared', or whose alone it is.
    scope text NOT NULL,
    image_type text NOT NULL,
    ocr_text text NOT NULL DEFAULT '',
    alt_text text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    -- When a page last asked for it, to the day.
    used_at timestamptz NOT NULL DEFAULT now(),
    -- Serves LIST_SUMMARIES, SAVE_SUMMARY and TOUCH_SUMMARIES.
    PRIMARY KEY (digest, prompt_version, model, scope),
    CONSTRAINT image_summary_digest_is_sha256 CHECK (digest ~ '^[0-9a-f]{64}$'),
    CONSTRAINT image_summary_type_is_known CHECK (
        image_type IN (
            'diagram', 'chart', 'table', 'formula', 'photo', 'screenshot', 'text', 'decorative', 'undescribed'
        )
    )
);

-- Serves PRUNE_SUMMARIES.
CREATE INDEX image_summary_use_idx ON worker.image_summaries (used_at);
