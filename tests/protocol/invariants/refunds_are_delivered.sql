-- No refund waits longer than grace: the relay runs, and Quota takes what it brings.
SELECT outbox_id, request_id, reason, created_at
FROM cache.outbox
WHERE created_at
      < clock_timestamp() - coalesce(nullif(current_setting('glossa.grace', true), ''), '5 minutes')::interval;
