-- Ceilings are held against what was really spent: each sum is that of its operations. (Days alone, but for --full.)
-- If not: ceilings refuse too early or too late. Write the sum of quota.ai_operations into quota.spending.
WITH summed AS (
    SELECT 'day' AS kind, to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS subject, sum(cost) AS cost_nanodollars
    FROM (
        -- By hour first: days are put into words for a few rows only.
        SELECT date_trunc('hour', created_at, 'UTC') AS created_at, sum(cost_nanodollars) AS cost
        FROM quota.ai_operations
        WHERE created_at >= date_trunc('day', current_setting('glossa.since')::timestamptz, 'UTC')
        GROUP BY 1
    ) AS hour
    GROUP BY 2
    UNION ALL
    SELECT part.kind, part.subject, sum(operation.cost_nanodollars)
    FROM quota.ai_operations AS operation
    CROSS JOIN LATERAL (VALUES
        ('document', operation.pdf_hash),
        ('generation', operation.generation_id::text),
        ('user_month', operation.user_id || to_char(operation.created_at AT TIME ZONE 'UTC', ' YYYY-MM'))
    ) AS part (kind, subject)
    WHERE part.subject IS NOT NULL AND current_setting('glossa.since') = '-infinity'
    GROUP BY part.kind, part.subject
), spent AS (
    SELECT kind, subject, cost_nanodollars
    FROM quota.spending
    WHERE kind = 'day'
      AND (current_setting('glossa.since') = '-infinity'
           OR subject >= to_char(current_setting('glossa.since')::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD'))
    UNION ALL
    SELECT kind, subject, cost_nanodollars
    FROM quota.spending
    WHERE kind <> 'day' AND current_setting('glossa.since') = '-infinity'
)
SELECT kind, subject, spent.cost_nanodollars, summed.cost_nanodollars AS sum_of_operations
FROM spent
FULL JOIN summed USING (kind, subject)
WHERE spent.cost_nanodollars IS DISTINCT FROM summed.cost_nanodollars;
