-- No generation is tried more often than allowed (glossa.max_attempts, 3), and no lease number was used twice.
SELECT generation_id, attempts, released
FROM cache.generations
WHERE attempts < 0 OR released NOT BETWEEN 0 AND attempts
   OR attempts - released > coalesce(nullif(current_setting('glossa.max_attempts', true), ''), '3')::integer
UNION ALL
SELECT generation_id, (failure ->> 'attempt')::integer, count(*)::integer
FROM cache.generations, jsonb_array_elements(failures) AS failure
GROUP BY generation_id, failure ->> 'attempt'
HAVING count(*) > 1;
