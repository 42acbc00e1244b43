-- Documents that lost a reference, for those who remember that somebody held one. Written in the transaction that
-- removes the reference, after an advisory lock that is kept until its end: numbers become visible in their order,
-- so whoever has seen one number has missed nothing below it.
CREATE TABLE registry.revocations (
    revocation_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pdf_hash text NOT NULL,
    revoked_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT revocation_hash_is_sha256 CHECK (pdf_hash ~ '^[0-9a-f]{64}$')
);

-- Serves PRUNE_REVOCATIONS.
CREATE INDEX revocation_age_idx ON registry.revocations (revoked_at);
