-- What workers tell and what models cost belongs to leases that the Cache gave out.
-- If not: somebody works without a lease. Look at which worker reports the generation.
SELECT told.generation_id, told.attempt, generation.attempts, 'event' AS told_by
FROM worker.generation_events AS told
INNER JOIN cache.generations AS generation USING (generation_id)
WHERE told.status IN ('ready', 'failed') AND told.created_at >= current_setting('glossa.since')::timestamptz
  AND told.attempt > generation.attempts
UNION ALL
SELECT operation.generation_id, operation.attempt, generation.attempts, 'operation'
FROM quota.ai_operations AS operation
INNER JOIN cache.generations AS generation USING (generation_id)
WHERE operation.created_at >= current_setting('glossa.since')::timestamptz
  AND operation.attempt > generation.attempts;
