-- Nothing waits for a worker longer than the queue allows plus the grace time: the sweep ends it.
-- If not: no Cache sweeps, or its GLOSSA_QUEUE_WAIT_SECONDS is another than the doctor's.
SELECT generation_id, owner, lane, run_after, started_at
FROM cache.generations
WHERE status = 'generating' AND leased_by IS NULL
  AND greatest(run_after, started_at)
      < now() - current_setting('glossa.queue_wait')::interval - current_setting('glossa.grace')::interval;
