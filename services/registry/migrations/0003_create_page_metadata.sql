-- What is on a page, detected once. A page that can never be read is remembered by its reason.
CREATE TABLE registry.canonical_page_metadata (
    pdf_hash text NOT NULL REFERENCES registry.canonical_documents (pdf_hash) ON DELETE CASCADE,
    page integer NOT NULL,
    word_count integer,
    images_count integer,
    has_images boolean GENERATED ALWAYS AS (images_count > 0) STORED,
    is_scanned boolean,
    fingerprint text,
    error_reason text,
    detected_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pdf_hash, page),
    CONSTRAINT page_is_counted_from_one CHECK (page >= 1),
    CONSTRAINT page_counts_are_not_negative CHECK (word_count >= 0 AND images_count >= 0),
    CONSTRAINT page_fingerprint_has_a_version CHECK (fingerprint ~ '^[0-9]+:[0-9a-f]{64}$'),
    CONSTRAINT page_is_known_or_broken CHECK (
        num_nonnulls(word_count, images_count, is_scanned, fingerprint)
        = CASE WHEN error_reason IS NULL THEN 4 ELSE 0 END
    )
);
