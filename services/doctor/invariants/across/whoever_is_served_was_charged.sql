-- Waiting or served means charged, be it at price 0. (An admin may have given a charge back as goodwill.)
-- If not: somebody reads for nothing. Does the Cache attach without Quota's answer? Compare both logs for the request.
SELECT request.request_id, request.user_id, request.state, charge.status, charge.refund_reason
FROM cache.requests AS request
LEFT JOIN quota.explain_requests AS charge USING (request_id)
WHERE request.created_at >= current_setting('glossa.since')::timestamptz
  AND request.state IN ('waiting', 'served')
  AND charge.status IS DISTINCT FROM 'charged'
  AND charge.refund_reason IS DISTINCT FROM 'goodwill';
