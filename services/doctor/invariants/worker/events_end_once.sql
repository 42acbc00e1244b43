-- A generation's events end once, and nothing follows the end.
-- If not: a watcher was told two outcomes. Is the index event_end_is_unique_idx in place?
SELECT ended.generation_id, ended.sequence, ended.status, later.sequence AS later_sequence, later.status AS later_status
FROM worker.generation_events AS ended
INNER JOIN worker.generation_events AS later
    ON later.generation_id = ended.generation_id AND later.sequence > ended.sequence
WHERE ended.status IN ('ready', 'failed') AND ended.created_at >= current_setting('glossa.since')::timestamptz;
