-- Nobody spends more than they have.
-- If not: a charge got past its check. Is the constraint account_balance_is_never_negative in place?
SELECT user_id, balance_units
FROM quota.accounts
WHERE balance_units < 0;
