-- Whatever was charged or given back was asked for: its entry names a request of the same user.
-- If not: units moved for nothing. `glossa ledger --user ID` shows the entry.
SELECT entry.entry_id, entry.user_id, entry.request_id, entry.kind, entry.units
FROM quota.ledger_entries AS entry
WHERE entry.created_at >= current_setting('glossa.since')::timestamptz
  AND entry.kind IN ('charge', 'refund', 'reprice', 'void')
  AND NOT EXISTS (
      SELECT FROM quota.explain_requests AS charge
      WHERE charge.request_id = entry.request_id AND charge.user_id = entry.user_id
  );
