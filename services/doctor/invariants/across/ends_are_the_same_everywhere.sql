-- What watchers were told and what was given up is what the Cache says: an outcome was never taken back.
-- If not: somebody saw a result that failed, or a failure that is ready. Look at who wrote to cache.generations.
SELECT told.generation_id, told.status AS told_status, generation.status, told.created_at AS told_at
FROM worker.generation_events AS told
INNER JOIN cache.generations AS generation USING (generation_id)
WHERE told.status IN ('ready', 'failed') AND told.created_at >= current_setting('glossa.since')::timestamptz
  AND told.status <> generation.status
UNION ALL
SELECT letter.generation_id, 'failed', generation.status, letter.failed_at
FROM worker.dead_letters AS letter
INNER JOIN cache.generations AS generation USING (generation_id)
WHERE letter.failed_at >= current_setting('glossa.since')::timestamptz AND generation.status <> 'failed';
