-- An admin's reset is an entry too. It may go either way: up to the allowance, or down to a smaller one. What is
-- dropped comes back wider, so no client misses anything, and what is there fits it already.
-- squawk-ignore ban-drop-constraint
ALTER TABLE quota.ledger_entries DROP CONSTRAINT ledger_entry_kind_is_known;
ALTER TABLE quota.ledger_entries ADD CONSTRAINT ledger_entry_kind_is_known
    CHECK (kind IN ('grant', 'expire', 'charge', 'refund', 'reprice', 'void', 'reset')) NOT VALID;

-- squawk-ignore ban-drop-constraint
ALTER TABLE quota.ledger_entries DROP CONSTRAINT ledger_entry_sign_fits_kind;
ALTER TABLE quota.ledger_entries ADD CONSTRAINT ledger_entry_sign_fits_kind
    CHECK (
        CASE WHEN kind IN ('charge', 'expire') THEN units <= 0 WHEN kind = 'reset' THEN true ELSE units >= 0 END
    ) NOT VALID;
