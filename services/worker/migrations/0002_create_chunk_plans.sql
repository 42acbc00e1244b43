-- Where a page was cut and what was made of each chunk, so that a retry pays for nothing twice. Both go when their
-- generation ends; what a crash leaves behind goes by age.
CREATE TABLE worker.chunk_plans (
    -- Serves GET_PLAN, SAVE_PLAN and FORGET_PLAN.
    generation_id uuid PRIMARY KEY,
    -- SHA-256 of the text that was cut; a plan is good for that text alone.
    text_digest text NOT NULL,
    -- The position after the last character of each chunk.
    chunk_ends integer [] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT chunk_plan_digest_is_sha256 CHECK (text_digest ~ '^[0-9a-f]{64}$'),
    CONSTRAINT chunk_plan_has_chunks CHECK (cardinality(chunk_ends) BETWEEN 1 AND 100)
);

-- Serves PRUNE_PLANS.
CREATE INDEX chunk_plan_age_idx ON worker.chunk_plans (created_at);

CREATE TABLE worker.chunk_explanations (
    generation_id uuid NOT NULL,
    -- From 0.
    chunk integer NOT NULL,
    stickers jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- Serves LIST_EXPLAINED.
    PRIMARY KEY (generation_id, chunk),
    CONSTRAINT chunk_explanation_has_a_plan FOREIGN KEY (generation_id)
    REFERENCES worker.chunk_plans (generation_id) ON DELETE CASCADE,
    CONSTRAINT chunk_is_not_negative CHECK (chunk >= 0),
    CONSTRAINT chunk_stickers_are_a_list CHECK (jsonb_typeof(stickers) = 'array')
);
