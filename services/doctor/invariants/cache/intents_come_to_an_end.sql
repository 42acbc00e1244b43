-- No intent outlives the grace time: it is attached, dropped, or given up by the sweep.
-- If not: no Cache sweeps. Is one running, and what does its log say about `sweep`?
SELECT request_id, user_id, updated_at, held_until
FROM cache.requests
WHERE state = 'intent' AND updated_at < now() - current_setting('glossa.grace')::interval;
