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
SELECT generation_id, min(sequence) AS first_sequence, max(sequence) AS last_sequence, count(*) AS events
FROM recent
INNER JOIN worker.generation_events USING (generation_id)
GROUP BY generation_id
HAVING min(sequence) <> 1 OR max(sequence) <> count(*);
