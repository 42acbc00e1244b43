-- A charge is given back once.
-- If not: somebody was paid twice for one failure. Is the index ledger_entry_once_per_request_idx in place?
SELECT entry.request_id, entry.user_id, entry.entry_id, other.entry_id AS other_entry_id
FROM quota.ledger_entries AS entry
INNER JOIN quota.ledger_entries AS other
    ON other.request_id = entry.request_id AND other.kind = 'refund' AND other.entry_id < entry.entry_id
WHERE entry.kind = 'refund' AND entry.request_id IS NOT NULL
  AND entry.created_at >= current_setting('glossa.since')::timestamptz;
