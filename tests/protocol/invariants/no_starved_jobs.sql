-- Nothing waits longer than the queue allows (glossa.queue_wait, 1 hour) plus grace: the sweep ends it.
SELECT generation_id, owner, lane, run_after, created_at
FROM cache.generations
WHERE status = 'generating' AND leased_by IS NULL AND run_after
      < clock_timestamp() - coalesce(nullif(current_setting('glossa.queue_wait', true), ''), '1 hour')::interval
        - coalesce(nullif(current_setting('glossa.grace', true), ''), '5 minutes')::interval;
