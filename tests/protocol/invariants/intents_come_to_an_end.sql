-- No intent outlives grace: it is attached, dropped, or given up by the sweep.
SELECT request_id, user_id, updated_at, held_until
FROM cache.requests
WHERE state = 'intent' AND updated_at
      < clock_timestamp() - coalesce(nullif(current_setting('glossa.grace', true), ''), '5 minutes')::interval;
