-- A balance is the sum of its user's entries, no unit more or less.
-- If not: units came from nowhere or vanished. Compare `glossa ledger --user ID` with the balance; correct by a reset.
SELECT user_id, account.balance_units, coalesce(entered.units, 0) AS sum_of_entries
FROM quota.accounts AS account
FULL JOIN (SELECT user_id, sum(units) AS units FROM quota.ledger_entries GROUP BY user_id) AS entered USING (user_id)
WHERE account.balance_units IS DISTINCT FROM coalesce(entered.units, 0);
