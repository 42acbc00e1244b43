-- Whom to tell when a file has been processed. Waiting for the document, due, and then delivered or given up.
CREATE TABLE registry.callbacks (
    callback_id uuid PRIMARY KEY,
    file_id uuid NOT NULL REFERENCES registry.files (file_id) ON DELETE CASCADE,
    url text NOT NULL,
    state text NOT NULL DEFAULT 'waiting',
    attempts integer NOT NULL DEFAULT 0,
    run_after timestamptz,
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz,
    CONSTRAINT callback_state_is_known CHECK (state IN ('waiting', 'due', 'delivered', 'failed')),
    CONSTRAINT callback_due_has_a_time CHECK ((state = 'due') = (run_after IS NOT NULL)),
    CONSTRAINT callback_ended_has_a_time CHECK ((state IN ('delivered', 'failed')) = (ended_at IS NOT NULL)),
    CONSTRAINT callback_attempts_are_not_negative CHECK (attempts >= 0)
);

-- Serves CLAIM_CALLBACKS.
CREATE INDEX callback_due_idx ON registry.callbacks (run_after) WHERE state = 'due';

-- Serves FIND_CALLBACK and the foreign key: the newest callback of a file.
CREATE INDEX callback_of_file_idx ON registry.callbacks (file_id, created_at DESC);

-- Serves RIPEN_CALLBACKS.
CREATE INDEX callback_waiting_idx ON registry.callbacks (file_id) WHERE state = 'waiting';
