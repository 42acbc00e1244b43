-- A lease has an owner, an end and a deadline, and only running work is leased.
SELECT generation_id, status, leased_by, leased_until, deadline_at
FROM cache.generations
WHERE (leased_by IS NULL) <> (leased_until IS NULL)
   OR (leased_by IS NULL) <> (deadline_at IS NULL)
   OR (leased_by IS NOT NULL AND status <> 'generating')
   OR leased_until > deadline_at;
