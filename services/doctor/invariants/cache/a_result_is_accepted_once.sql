-- A generation has one result: nobody was served before it was accepted. (Transactions overlap by seconds at most.)
-- If not: a second result replaced the one that was served; a late worker got past the fence of its lease.
SELECT request.request_id, generation.generation_id, request.updated_at AS served_at, generation.completed_at
FROM cache.requests AS request
INNER JOIN cache.generations AS generation USING (generation_id)
WHERE request.state = 'served' AND request.updated_at >= current_setting('glossa.since')::timestamptz
  AND request.updated_at < generation.completed_at - interval '30 seconds';
