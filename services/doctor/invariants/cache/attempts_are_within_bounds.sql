-- No generation is tried more often than allowed, and no more leases are given back than were taken.
-- If not: a page costs more than it may. Does the doctor know the Cache's GLOSSA_MAX_ATTEMPTS?
SELECT generation_id, status, attempts, released
FROM cache.generations
WHERE (status = 'generating' OR created_at >= current_setting('glossa.since')::timestamptz)
  AND (attempts < 0 OR released NOT BETWEEN 0 AND attempts
       OR attempts - released > current_setting('glossa.max_attempts')::integer);
