-- What a request costs now is what its entries add up to: charged once, given back at most once, nothing left when void.
SELECT charge.request_id, charge.status, charge.quota_units, coalesce(sum(entry.units), 0) AS sum_of_entries
FROM quota.explain_requests AS charge
LEFT JOIN quota.ledger_entries AS entry USING (request_id)
GROUP BY charge.request_id, charge.status, charge.quota_units
HAVING coalesce(sum(entry.units), 0) <> CASE WHEN charge.status = 'charged' THEN -charge.quota_units ELSE 0 END
    OR count(*) FILTER (WHERE entry.kind = 'charge') > 1
    OR count(*) FILTER (WHERE entry.kind = 'refund') > 1;
