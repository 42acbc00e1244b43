-- squawk-ignore-file require-concurrent-index-creation
-- Serves LIST_REDRIVEN: what was started anew, last first.
CREATE INDEX dead_letters_redriven_idx ON worker.dead_letters (redriven_at)
WHERE redriven_at IS NOT NULL;
