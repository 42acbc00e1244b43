-- No lease ran out long ago without being taken over or ended, and no attempt outlived its deadline.
SELECT generation_id, leased_by, attempts, leased_until, deadline_at
FROM cache.generations
WHERE status = 'generating' AND least(leased_until, deadline_at)
      < clock_timestamp() - coalesce(nullif(current_setting('glossa.grace', true), ''), '5 minutes')::interval;
