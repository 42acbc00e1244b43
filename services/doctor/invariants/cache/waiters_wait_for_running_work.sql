-- Requests are settled together with their generation: waiting, served and failed mean the same on both sides.
-- If not: somebody waits for what has ended, or was served what never came. Look at the Cache's log for the request.
SELECT request.request_id, request.user_id, request.state, generation.generation_id, generation.status
FROM cache.requests AS request
LEFT JOIN cache.generations AS generation USING (generation_id)
WHERE request.created_at >= current_setting('glossa.since')::timestamptz
  AND generation.status IS DISTINCT FROM CASE request.state
      WHEN 'waiting' THEN 'generating' WHEN 'served' THEN 'ready' WHEN 'failed' THEN 'failed'
      ELSE generation.status END;
