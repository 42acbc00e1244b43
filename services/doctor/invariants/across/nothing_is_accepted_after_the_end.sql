-- Nobody was told of an end before the Cache had accepted it: no result came after the one that was told.
-- If not: a second result replaced the one that was seen; a late worker got past the fence of its lease.
SELECT told.generation_id, told.status, told.created_at AS told_at, generation.completed_at
FROM worker.generation_events AS told
INNER JOIN cache.generations AS generation USING (generation_id)
WHERE told.status IN ('ready', 'failed') AND told.created_at >= current_setting('glossa.since')::timestamptz
  AND told.created_at < generation.completed_at - interval '30 seconds';
