-- A request is attached to a generation of its own page, and a private result belongs to its user alone.
SELECT request.request_id, request.user_id, generation.generation_id, generation.scope
FROM cache.requests AS request
INNER JOIN cache.generations AS generation USING (generation_id)
WHERE (request.pdf_hash, request.page, request.locale)
      IS DISTINCT FROM (generation.pdf_hash, generation.page, generation.locale)
   OR generation.scope NOT IN ('shared', 'user:' || request.user_id);
