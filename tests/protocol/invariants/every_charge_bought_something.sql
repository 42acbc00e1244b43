-- A charge that stands bought a result or waits for one, after grace and for as long as requests are kept.
SELECT charge.request_id, charge.user_id, charge.outcome, charge.quota_units, charge.created_at
FROM quota.explain_requests AS charge
WHERE charge.status = 'charged' AND charge.quota_units > 0
  AND charge.created_at BETWEEN now() - interval '29 days'
      AND clock_timestamp() - coalesce(nullif(current_setting('glossa.grace', true), ''), '5 minutes')::interval
  AND NOT EXISTS (
      SELECT FROM cache.requests AS request
      WHERE request.request_id = charge.request_id AND request.state IN ('waiting', 'served')
  )
  AND NOT EXISTS (
      SELECT FROM cache.generations AS generation
      WHERE charge.outcome = 'cached' AND generation.generation_id = charge.generation_id
        AND generation.status = 'ready'
  );
