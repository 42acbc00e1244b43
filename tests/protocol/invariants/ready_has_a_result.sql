-- Ready is having a result; whatever has ended says when, and whatever failed says why.
SELECT generation_id, status, result IS NULL AND stickers IS NULL AS has_no_result, completed_at, error_reason
FROM cache.generations
WHERE (status = 'ready') <> (result IS NOT NULL OR stickers IS NOT NULL)
   OR (status = 'generating') <> (completed_at IS NULL)
   OR (status = 'failed' AND error_reason IS NULL)
   OR (retired_at IS NOT NULL AND status <> 'ready');
