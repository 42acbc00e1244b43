-- Pages are told apart by their drawings too, and hidden text is known: what was detected before is detected again,
-- on first use.
DELETE FROM registry.canonical_page_metadata;

ALTER TABLE registry.canonical_page_metadata ADD COLUMN has_hidden_text boolean;

-- The table is empty: there is nothing to validate.
ALTER TABLE registry.canonical_page_metadata
ADD CONSTRAINT page_hidden_text_is_known CHECK ((has_hidden_text IS NULL) = (fingerprint IS NULL)) NOT VALID;
