-- No refund waits in the outbox longer than the grace time.
-- If not: the relay does not run, or Quota does not take what it brings. Is Quota reachable from the Cache?
SELECT outbox_id, request_id, user_id, reason, created_at
FROM cache.outbox
WHERE created_at < now() - current_setting('glossa.grace')::interval;
