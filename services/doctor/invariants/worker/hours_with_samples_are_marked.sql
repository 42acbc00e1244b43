-- Every hour in which something was measured is known to the roll-up. (Samples are kept for two weeks.)
-- If not: the day's numbers leave that hour out. Insert the hour into worker.metric_hours.
SELECT measured.hour, measured.samples
FROM (
    SELECT date_trunc('hour', created_at, 'UTC') AS hour, count(*) AS samples
    FROM worker.sticker_latency_samples
    WHERE created_at >= greatest(current_setting('glossa.since')::timestamptz, now() - interval '12 days')
    GROUP BY 1
) AS measured
LEFT JOIN worker.metric_hours AS marked USING (hour)
WHERE marked.hour IS NULL;
