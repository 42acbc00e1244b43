-- A request has a generation of its own page, and what was made privately belongs to its user alone.
-- If not: somebody reads what is not theirs. Retire the generation at once.
SELECT request.request_id, request.user_id, generation.generation_id, generation.scope, request.page, request.kind
FROM cache.requests AS request
INNER JOIN cache.generations AS generation USING (generation_id)
WHERE request.created_at >= current_setting('glossa.since')::timestamptz
  AND ((request.pdf_hash, request.page, request.locale, request.kind)
       IS DISTINCT FROM (generation.pdf_hash, generation.page, generation.locale, generation.kind)
       OR generation.scope NOT IN ('shared', 'user:' || request.user_id));
