-- No lease ran out longer ago than the grace time without being taken over or ended, and no attempt outlived its deadline.
-- If not: no worker takes work up. Is a worker running, and does it reach the Cache?
SELECT generation_id, leased_by, attempts, leased_until, deadline_at
FROM cache.generations
WHERE status = 'generating'
  AND least(leased_until, deadline_at) < now() - current_setting('glossa.grace')::interval;
