-- Requests are settled together with their generation: waiting, served and failed mean the same on both sides.
SELECT request.request_id, request.state, generation.status
FROM cache.requests AS request
LEFT JOIN cache.generations AS generation USING (generation_id)
WHERE (request.state = 'waiting' AND generation.status IS DISTINCT FROM 'generating')
   OR (request.state = 'served' AND generation.status IS DISTINCT FROM 'ready')
   OR (request.state = 'failed' AND generation.status IS DISTINCT FROM 'failed');
