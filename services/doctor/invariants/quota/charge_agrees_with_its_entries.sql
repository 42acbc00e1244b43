-- What a request costs is what its entries add up to: charged once, given back at most once, nothing left when void.
-- If not: somebody paid another price than they were told. `glossa ledger --user ID` shows the entries.
SELECT charge.request_id, charge.user_id, charge.status, charge.quota_units, coalesce(entered.units, 0) AS sum_of_entries,
       entered.charges, entered.refunds
FROM (
    SELECT * FROM quota.explain_requests WHERE created_at >= current_setting('glossa.since')::timestamptz
) AS charge
LEFT JOIN (
    SELECT request_id, user_id, sum(units) AS units, count(*) FILTER (WHERE kind = 'charge') AS charges,
           count(*) FILTER (WHERE kind = 'refund') AS refunds, count(*) FILTER (WHERE kind = 'void') AS voids
    FROM quota.ledger_entries
    WHERE request_id IS NOT NULL AND kind <> 'reset' AND created_at >= current_setting('glossa.since')::timestamptz
    GROUP BY request_id, user_id
) AS entered USING (request_id, user_id)
WHERE (coalesce(entered.units, 0), coalesce(entered.charges, 0), coalesce(entered.refunds, 0), coalesce(entered.voids, 0))
   <> (CASE WHEN charge.status = 'charged' THEN -charge.quota_units ELSE 0 END,
       (charge.status <> 'void')::integer, (charge.status = 'refunded')::integer, (charge.status = 'void')::integer);
