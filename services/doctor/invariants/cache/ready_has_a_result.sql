-- Ready is having a result; whatever has ended says when, whatever failed says why.
-- If not: readers get nothing for their units. Retire such a generation, so that the page is made anew.
SELECT generation_id, status, stage, result IS NULL AND stickers IS NULL AS has_no_result, completed_at, error_reason
FROM cache.generations
WHERE created_at >= current_setting('glossa.since')::timestamptz
  AND ((status = 'ready') <> (result IS NOT NULL OR stickers IS NOT NULL)
       OR (status = 'generating') <> (completed_at IS NULL)
       OR (status = 'failed' AND error_reason IS NULL)
       OR (retired_at IS NOT NULL AND status <> 'ready')
       OR (stage IN ('ready', 'failed') AND stage <> status) OR (status <> 'generating' AND stage <> status));
