-- PDF content, known once however many hold it.
CREATE TABLE registry.canonical_documents (
    pdf_hash text PRIMARY KEY,
    size_bytes bigint NOT NULL,
    total_pages integer NOT NULL,
    reference_count bigint NOT NULL DEFAULT 0,
    -- Since when nobody holds it; the grace time before collection counts from here.
    unreferenced_at timestamptz DEFAULT now(),
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT document_hash_is_sha256 CHECK (pdf_hash ~ '^[0-9a-f]{64}$'),
    CONSTRAINT document_has_bytes CHECK (size_bytes > 0),
    CONSTRAINT document_has_pages CHECK (total_pages > 0),
    CONSTRAINT document_reference_count_is_never_negative CHECK (reference_count >= 0),
    CONSTRAINT document_is_unreferenced_or_counted
        CHECK ((reference_count = 0) = (unreferenced_at IS NOT NULL))
);

-- Who refers to a document. Rows and reference_count change in one transaction, under the document's row lock.
CREATE TABLE registry.canonical_document_refs (
    ref_type text NOT NULL,
    ref_id uuid NOT NULL,
    pdf_hash text NOT NULL REFERENCES registry.canonical_documents (pdf_hash),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (ref_type, ref_id),
    CONSTRAINT reference_type_is_a_short_word CHECK (ref_type ~ '^[a-z][a-z_]{0,19}$')
);

-- Serves the foreign key when a document goes, and counting the references of one document.
CREATE INDEX reference_document_idx ON registry.canonical_document_refs (pdf_hash);
