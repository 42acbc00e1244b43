-- A balance is the sum of its entries, and never negative.
SELECT account.user_id, account.balance_units, coalesce(sum(entry.units), 0) AS sum_of_entries
FROM quota.accounts AS account
LEFT JOIN quota.ledger_entries AS entry USING (user_id)
GROUP BY account.user_id, account.balance_units
HAVING account.balance_units <> coalesce(sum(entry.units), 0) OR account.balance_units < 0;
