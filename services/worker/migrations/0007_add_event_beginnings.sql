-- squawk-ignore-file require-concurrent-index-creation
-- Serves DELETE_OLD_EVENTS: generations that began long ago, among them those whose end nobody recorded.
CREATE INDEX event_beginnings_by_time_idx ON worker.generation_events (created_at)
WHERE sequence = 1;
