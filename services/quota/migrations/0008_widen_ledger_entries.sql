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

-- Refunds, repricings, voids and resets come at most once for each request, whatever the code does. A charge is written
-- with its row in explain_requests, whose key says the same: a second index over every charge would only cost.
-- squawk-ignore require-concurrent-index-deletion
DROP INDEX quota.ledger_entry_once_per_request_idx;
-- squawk-ignore require-concurrent-index-creation
CREATE UNIQUE INDEX ledger_entry_once_per_request_idx
    ON quota.ledger_entries (request_id, kind) WHERE kind <> 'charge' AND request_id IS NOT NULL;
