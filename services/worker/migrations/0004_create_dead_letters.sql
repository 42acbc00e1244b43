-- Generations that were given up, as the Cache tells of them; a redrive starts them anew.
CREATE TABLE worker.dead_letters (
    generation_id uuid PRIMARY KEY,
    kind text NOT NULL,
    pdf_hash text NOT NULL,
    page integer NOT NULL,
    locale text NOT NULL,
    effective_mode text NOT NULL,
    model text NOT NULL,
    prompt_version text NOT NULL,
    private boolean NOT NULL,
    reason text NOT NULL,
    message text NOT NULL,
    permanent boolean NOT NULL,
    -- Made in earnest.
    attempts integer NOT NULL,
    -- [{"attempt", "reason", "message", "failed_at"}], oldest first.
    failures jsonb NOT NULL,
    -- As far as it was known when the letter was written; Quota knows the rest.
    cost_nanodollars bigint NOT NULL,
    created_at timestamptz NOT NULL,
    failed_at timestamptz NOT NULL,
    redriven_at timestamptz,
    -- The generation that took its place.
    redriven_as uuid,
    CONSTRAINT dead_letter_attempts_are_not_negative CHECK (attempts >= 0),
    CONSTRAINT dead_letter_cost_is_not_negative CHECK (cost_nanodollars >= 0),
    CONSTRAINT dead_letter_redrive_is_whole CHECK ((redriven_at IS NULL) = (redriven_as IS NULL))
);

-- Serves LIST_DEAD_LETTERS, READ_LAST_FAILURE, ROLL_UP and DELETE_OLD_DEAD_LETTERS.
CREATE INDEX dead_letters_by_time_idx ON worker.dead_letters (failed_at, generation_id);

-- Serves LIST_DEAD_LETTERS, CHOOSE_DEAD_LETTERS and COUNT_DEAD_LETTERS for those nobody has started anew.
CREATE INDEX dead_letters_open_idx ON worker.dead_letters (failed_at, generation_id)
WHERE redriven_at IS NULL;
