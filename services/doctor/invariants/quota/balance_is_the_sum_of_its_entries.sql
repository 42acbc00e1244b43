-- A balance is the sum of its user's entries, no unit more or less. (Of users whose units moved, but for --full.)
-- If not: units came from nowhere or vanished. Compare `glossa ledger --user ID` with the balance; correct by a reset.
WITH moved AS (
    SELECT DISTINCT user_id
    FROM quota.ledger_entries
    WHERE current_setting('glossa.since') <> '-infinity'
      AND created_at >= current_setting('glossa.since')::timestamptz
), entered AS (
    -- User by user, through ledger_entries_by_user_idx: a join would sum up everybody's past.
    SELECT user_id, (
        SELECT sum(entry.units) FROM quota.ledger_entries AS entry WHERE entry.user_id = moved.user_id
    ) AS units
    FROM moved
    UNION ALL
    SELECT user_id, sum(units)
    FROM quota.ledger_entries
    WHERE current_setting('glossa.since') = '-infinity'
    GROUP BY user_id
)
SELECT user_id, account.balance_units, coalesce(entered.units, 0) AS sum_of_entries
FROM quota.accounts AS account
FULL JOIN entered USING (user_id)
WHERE account.balance_units IS DISTINCT FROM coalesce(entered.units, 0)
  AND (entered.user_id IS NOT NULL OR current_setting('glossa.since') = '-infinity');
