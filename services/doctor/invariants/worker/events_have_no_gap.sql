-- The events of a generation are numbered from one without gap: who resumes misses nothing.
-- If not: a watcher waits for an event that never comes. Who deleted from worker.generation_events past the worker?
WITH recent AS (
    SELECT generation_id FROM worker.generation_events
    WHERE sequence = 1 AND created_at >= current_setting('glossa.since')::timestamptz
    UNION
    SELECT generation_id FROM worker.generation_events
    WHERE status IN ('ready', 'failed') AND created_at >= current_setting('glossa.since')::timestamptz
    UNION
    SELECT generation_id FROM worker.generation_events WHERE current_setting('glossa.since') = '-infinity'
)
SELECT recent.generation_id, told.first_sequence, told.last_sequence, told.events
FROM recent
-- One by one: a join would be planned to read everything that is kept.
CROSS JOIN LATERAL (
    SELECT min(sequence) AS first_sequence, max(sequence) AS last_sequence, count(*) AS events
    FROM worker.generation_events AS event
    WHERE event.generation_id = recent.generation_id
) AS told
WHERE told.first_sequence <> 1 OR told.last_sequence <> told.events;
