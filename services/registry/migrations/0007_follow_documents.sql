-- Nothing has been released yet: tables are small enough to be indexed while they are locked.
-- squawk-ignore-file require-concurrent-index-creation
-- What happens to a document after its upload, and before it goes.
ALTER TABLE registry.canonical_documents
-- When every page had been looked at.
ADD COLUMN processed_at timestamptz,
-- Until when a replica has taken the looking upon itself.
ADD COLUMN processing_until timestamptz,
ADD COLUMN processing_attempts integer NOT NULL DEFAULT 0,
-- Since when it is being collected: its bytes may be gone already.
ADD COLUMN collecting_at timestamptz;

ALTER TABLE registry.canonical_documents
ADD CONSTRAINT document_being_collected_has_no_reference CHECK (collecting_at IS NULL OR reference_count = 0) NOT VALID;

-- Serves CLAIM_DOCUMENT: the oldest document that is not processed yet.
CREATE INDEX document_unprocessed_idx ON registry.canonical_documents (created_at)
WHERE processed_at IS NULL AND reference_count > 0;

-- Serves LIST_GARBAGE.
CREATE INDEX document_unreferenced_idx ON registry.canonical_documents (unreferenced_at)
WHERE unreferenced_at IS NOT NULL;

-- Documents that are gone, until those who explained their pages have been told.
CREATE TABLE registry.collected_documents (
    pdf_hash text PRIMARY KEY,
    collected_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT collected_hash_is_sha256 CHECK (pdf_hash ~ '^[0-9a-f]{64}$')
);
