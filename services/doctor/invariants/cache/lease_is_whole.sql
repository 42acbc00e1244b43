-- A lease has an owner, an end and a deadline it does not outlive, and only running work is leased.
-- If not: work may be done twice or never. Look into the Cache's log for the generation; the sweep mends what ran out.
SELECT generation_id, status, leased_by, leased_until, deadline_at
FROM cache.generations
WHERE (status = 'generating' OR created_at >= current_setting('glossa.since')::timestamptz)
  AND ((leased_by IS NULL) <> (leased_until IS NULL)
       OR (leased_by IS NULL) <> (deadline_at IS NULL)
       OR (leased_by IS NOT NULL AND status <> 'generating')
       OR leased_until > deadline_at);
