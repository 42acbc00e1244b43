-- A page is made by one generation at a time, and served from one.
-- If not: the same page is paid for twice. Is generation_one_live_idx in place? Retire the younger one of each pair.
SELECT one.generation_id, other.generation_id AS other_generation_id, one.pdf_hash, one.page, one.status
FROM cache.generations AS one
INNER JOIN cache.generations AS other
    USING (pdf_hash, page, locale, kind, prompt_version, effective_mode, model, scope)
WHERE one.status IN ('generating', 'ready') AND one.retired_at IS NULL
  AND other.status IN ('generating', 'ready') AND other.retired_at IS NULL
  AND other.generation_id <> one.generation_id
  AND one.created_at >= current_setting('glossa.since')::timestamptz;
