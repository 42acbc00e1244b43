-- Cache and Quota agree on who asked for what.
SELECT request.request_id, request.user_id, charge.user_id AS charged_user_id, request.page, charge.page AS charged_page
FROM cache.requests AS request
INNER JOIN quota.explain_requests AS charge USING (request_id)
WHERE request.state IN ('waiting', 'served', 'failed')
  AND (request.user_id, request.pdf_hash, request.page, request.locale)
      IS DISTINCT FROM (charge.user_id, charge.pdf_hash, charge.page, charge.locale);
