-- One live generation per key.
SELECT pdf_hash, page, locale, kind, prompt_version, effective_mode, model, scope, count(*) AS live
FROM cache.generations
WHERE status IN ('generating', 'ready') AND retired_at IS NULL
GROUP BY pdf_hash, page, locale, kind, prompt_version, effective_mode, model, scope
HAVING count(*) > 1;
