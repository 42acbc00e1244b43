-- A charge that stands bought a result or waits for one, after the grace time and for as long as requests are kept.
-- If not: somebody paid for nothing. Refund with Quota's Refund, reason `request_aborted`.
SELECT charge.request_id, charge.user_id, charge.outcome, charge.quota_units, charge.created_at
FROM quota.explain_requests AS charge
WHERE charge.status = 'charged' AND charge.quota_units > 0
  AND charge.created_at >= greatest(
      current_setting('glossa.since')::timestamptz,
      now() - current_setting('glossa.retention')::interval + interval '1 day'
  )
  AND charge.created_at < now() - current_setting('glossa.grace')::interval
  AND NOT EXISTS (
      SELECT FROM cache.requests AS request
      WHERE request.request_id = charge.request_id AND request.state IN ('waiting', 'served')
  )
  AND NOT (charge.outcome = 'cached' AND EXISTS (
      SELECT FROM cache.generations AS generation
      WHERE generation.generation_id = charge.generation_id AND generation.status = 'ready'
  ));
