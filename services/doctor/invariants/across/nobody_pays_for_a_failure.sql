-- Failed or given up means refunded, once the relay had the grace time. (A hit under an id that was given up has bought
-- what was there.)
-- If not: somebody paid for nothing. Refund with Quota's Refund, reason `generation_failed`.
SELECT request.request_id, request.user_id, request.state, charge.status, charge.quota_units
FROM cache.requests AS request
INNER JOIN quota.explain_requests AS charge USING (request_id)
WHERE request.state IN ('failed', 'aborted')
  AND request.updated_at >= current_setting('glossa.since')::timestamptz
  AND request.updated_at < now() - current_setting('glossa.grace')::interval
  AND charge.status = 'charged' AND charge.quota_units > 0
  AND NOT (request.state = 'aborted' AND charge.outcome = 'cached');
