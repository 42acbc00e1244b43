-- squawk-ignore-file require-concurrent-index-creation
-- Serves DELETE_OLD_EVENTS: generations that ended long ago.
CREATE INDEX event_ends_by_time_idx ON worker.generation_events (created_at)
WHERE status IN ('ready', 'failed');
