-- A refund stands in the outbox because its request failed, was given up, or got what somebody else had made.
-- If not: somebody gets back what they did receive. Delete the row before the relay delivers it.
SELECT due.outbox_id, due.request_id, due.user_id, due.reason, request.state
FROM cache.outbox AS due
LEFT JOIN cache.requests AS request USING (request_id)
WHERE request.user_id IS DISTINCT FROM due.user_id
   OR NOT CASE due.reason
       WHEN 'generation_failed' THEN request.state = 'failed'
       WHEN 'request_aborted' THEN request.state = 'aborted'
       ELSE request.state IN ('waiting', 'served', 'failed') END;
