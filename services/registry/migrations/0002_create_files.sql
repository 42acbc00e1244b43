-- One owner's upload of a document.
CREATE TABLE registry.files (
    file_id uuid PRIMARY KEY,
    user_id text,
    visitor_session_id text,
    content_hash text NOT NULL REFERENCES registry.canonical_documents (pdf_hash),
    filename text NOT NULL,
    size_bytes bigint NOT NULL,
    -- Asked for although the owner held the same bytes already.
    forced boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT file_has_one_owner CHECK (num_nonnulls(user_id, visitor_session_id) = 1),
    CONSTRAINT file_owner_is_short
        CHECK (char_length(coalesce(user_id, visitor_session_id)) BETWEEN 1 AND 128),
    CONSTRAINT file_has_a_name CHECK (char_length(filename) BETWEEN 1 AND 255),
    CONSTRAINT file_has_bytes CHECK (size_bytes > 0)
);

-- An owner has a document once, whatever the replicas do; only asking by force makes another file.
CREATE UNIQUE INDEX file_is_unique_per_owner_idx ON registry.files (content_hash, user_id, visitor_session_id)
NULLS NOT DISTINCT WHERE NOT forced;

-- Serve FIND_HELD and RESOLVE_HASH: an owner's file of one document, forced ones too.
CREATE INDEX file_of_user_idx ON registry.files (user_id, content_hash) WHERE user_id IS NOT NULL;
CREATE INDEX file_of_visitor_idx ON registry.files (visitor_session_id, content_hash)
WHERE visitor_session_id IS NOT NULL;
