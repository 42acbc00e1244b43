-- What was spent and what sharing saved, line by line: one line for each call to a model, and one for each hit or join
-- with what its generation had cost. Private, refunded and voided requests save nothing; a repriced one is what it was
-- served as. Views see what their reader may see.
CREATE VIEW quota.cost_lines WITH (security_invoker = true) AS
SELECT operation.created_at, operation.user_id, operation.pdf_hash,
       1 AS operations, (operation.outcome <> 'ok')::integer AS failed_operations,
       operation.input_tokens, operation.cached_input_tokens, operation.output_tokens,
       operation.cost_nanodollars, 0 AS shared_requests, 0::bigint AS saved_nanodollars
FROM quota.ai_operations AS operation
UNION ALL
SELECT entry.created_at, entry.user_id, request.pdf_hash, 0, 0, 0, 0, 0, 0, 1, coalesce(spent.cost_nanodollars, 0)
FROM quota.ledger_entries AS entry
JOIN quota.explain_requests AS request ON request.request_id = entry.request_id
LEFT JOIN quota.spending AS spent
    ON spent.kind = 'generation' AND spent.subject = request.generation_id::text
WHERE entry.kind = 'charge' AND request.status = 'charged' AND request.share_to_cache
    AND request.outcome IN ('cached', 'joined');

-- For people: every UTC day in one line.
CREATE VIEW quota.daily_summary WITH (security_invoker = true) AS
SELECT (line.created_at AT TIME ZONE 'UTC')::date AS day,
       sum(line.operations) AS operations, sum(line.failed_operations) AS failed_operations,
       sum(line.input_tokens) AS input_tokens, sum(line.cached_input_tokens) AS cached_input_tokens,
       sum(line.output_tokens) AS output_tokens, sum(line.cost_nanodollars) AS cost_nanodollars,
       sum(line.shared_requests) AS shared_requests, sum(line.saved_nanodollars) AS saved_nanodollars
FROM quota.cost_lines AS line
GROUP BY day;

-- Serves READ_COSTS for everybody; entries come in the order of time, so a sparse index does.
-- squawk-ignore require-concurrent-index-creation
CREATE INDEX ledger_entries_by_time_idx ON quota.ledger_entries USING brin (created_at);
