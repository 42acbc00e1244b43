-- What a watcher sees never goes back to an older attempt.
-- If not: a worker that lost its lease could still tell its story. Look at the worker's log for the generation.
WITH recent AS (
    SELECT generation_id FROM worker.generation_events
    WHERE sequence = 1 AND created_at >= current_setting('glossa.since')::timestamptz
    UNION
    SELECT generation_id FROM worker.generation_events
    WHERE status IN ('ready', 'failed') AND created_at >= current_setting('glossa.since')::timestamptz
    UNION
    SELECT generation_id FROM worker.generation_events WHERE current_setting('glossa.since') = '-infinity'
)
SELECT recent.generation_id, told.sequence, told.attempt, told.attempt_before
FROM recent
-- One by one: a join would be planned to read everything that is kept.
CROSS JOIN LATERAL (
    SELECT event.sequence, event.attempt, lag(event.attempt) OVER (ORDER BY event.sequence) AS attempt_before
    FROM worker.generation_events AS event
    WHERE event.generation_id = recent.generation_id
) AS told
WHERE told.attempt < told.attempt_before;
