-- What was rolled up counts every sample of its hour once.
-- If not: the day's numbers are wrong. Set rolled_up_at of the hour to NULL: it is summed again.
WITH rolled_up AS (
    SELECT hour
    FROM worker.metric_hours
    WHERE rolled_up_at IS NOT NULL
      AND hour >= greatest(current_setting('glossa.since')::timestamptz, now() - interval '12 days')
), measured AS (
    SELECT date_trunc('hour', created_at, 'UTC') AS hour, count(*) AS samples
    FROM worker.sticker_latency_samples
    WHERE created_at >= greatest(
        date_trunc('hour', current_setting('glossa.since')::timestamptz, 'UTC'), now() - interval '13 days'
    )
    GROUP BY 1
), summed AS (
    SELECT begins_at AS hour, sum(cache_hits + cache_misses + joins) AS samples
    FROM worker.sticker_metrics
    WHERE span = 'hour' AND pdf_hash = '' AND locale = '' AND effective_mode = ''
      AND begins_at >= greatest(current_setting('glossa.since')::timestamptz, now() - interval '12 days')
    GROUP BY begins_at
)
SELECT rolled_up.hour, coalesce(measured.samples, 0) AS samples, coalesce(summed.samples, 0) AS counted
FROM rolled_up
LEFT JOIN measured USING (hour)
LEFT JOIN summed USING (hour)
WHERE coalesce(measured.samples, 0) <> coalesce(summed.samples, 0);
