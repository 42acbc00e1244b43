-- What is ready or failed stays so: nothing is leased, and nobody is made to wait for it, after its end.
-- If not: somebody saw an outcome that was taken back. Look at who wrote to cache.generations past the Cache.
SELECT generation_id, status, started_at, completed_at
FROM cache.generations
WHERE (status = 'generating' OR created_at >= current_setting('glossa.since')::timestamptz)
  AND (started_at > completed_at OR (status = 'generating' AND (failed_for_good OR retired_at IS NOT NULL)));
