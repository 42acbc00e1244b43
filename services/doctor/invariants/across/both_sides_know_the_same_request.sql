-- Cache and Quota agree on who asked for what.
-- If not: somebody paid for another's page. A request_id was used twice; compare both logs for it.
SELECT request.request_id, request.user_id, charge.user_id AS charged_user_id,
       request.page, charge.page AS charged_page, request.locale, charge.locale AS charged_locale
FROM cache.requests AS request
INNER JOIN quota.explain_requests AS charge USING (request_id)
WHERE request.created_at >= current_setting('glossa.since')::timestamptz
  AND request.state IN ('waiting', 'served', 'failed')
  AND (request.user_id, request.pdf_hash, request.page, request.locale)
      IS DISTINCT FROM (charge.user_id, charge.pdf_hash, charge.page, charge.locale);
