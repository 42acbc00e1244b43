-- Failed or given up means refunded, once the relay had time (glossa.grace, 5 minutes). A hit with the id of a
-- request that was given up has bought what was there.
SELECT request.request_id, request.state, charge.status, charge.quota_units
FROM cache.requests AS request
INNER JOIN quota.explain_requests AS charge USING (request_id)
WHERE request.state IN ('failed', 'aborted') AND charge.status = 'charged' AND charge.quota_units > 0
  AND NOT (request.state = 'aborted' AND charge.outcome = 'cached')
  AND request.updated_at
      < clock_timestamp() - coalesce(nullif(current_setting('glossa.grace', true), ''), '5 minutes')::interval;
