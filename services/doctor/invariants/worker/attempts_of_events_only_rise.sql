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
SELECT generation_id, sequence, attempt, attempt_before
FROM (
    SELECT generation_id, sequence, attempt,
           lag(attempt) OVER (PARTITION BY generation_id ORDER BY sequence) AS attempt_before
    FROM recent
    INNER JOIN worker.generation_events USING (generation_id)
) AS told
WHERE attempt < attempt_before;
