-- The number of a lease is used once: failures of a generation carry numbers that only rise, up to its last lease.
-- If not: two workers held the same lease, and the fence between them does not hold. Stop leasing and look at the Cache.
SELECT generation_id, attempts, number AS attempt, number_before
FROM (
    SELECT generation_id, attempts, (failure ->> 'attempt')::integer AS number,
           lag((failure ->> 'attempt')::integer) OVER (PARTITION BY generation_id ORDER BY place) AS number_before
    FROM cache.generations
    CROSS JOIN LATERAL jsonb_array_elements(failures) WITH ORDINALITY AS recorded (failure, place)
    WHERE (status = 'generating' OR created_at >= current_setting('glossa.since')::timestamptz)
      AND failures <> '[]'
) AS numbered
WHERE number > attempts OR number <= number_before;
