-- A callback that is due is sent within the grace time.
-- If not: no Registry sends callbacks. Has it GLOSSA_CALLBACK_SECRET?
SELECT callback.callback_id, callback.file_id, callback.attempts, callback.run_after
FROM registry.callbacks AS callback
INNER JOIN registry.files AS file USING (file_id)
INNER JOIN registry.canonical_documents AS document ON document.pdf_hash = file.content_hash
WHERE callback.state = 'due' AND document.processed_at IS NOT NULL
  AND callback.run_after < now() - current_setting('glossa.grace')::interval;
