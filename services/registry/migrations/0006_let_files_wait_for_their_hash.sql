-- Nothing has been released yet: tables are small enough to be indexed while they are locked.
-- squawk-ignore-file require-concurrent-index-creation, require-concurrent-index-deletion, ban-drop-not-null
-- Files taken over from elsewhere are known before anybody has hashed them: their bytes are in the object store under
-- a key of their own until the backfill, or the first use, makes them files like all others.
ALTER TABLE registry.files
ALTER COLUMN content_hash DROP NOT NULL,
ALTER COLUMN size_bytes DROP NOT NULL,
ADD COLUMN source_key text,
-- Why the bytes could not be taken over; not tried again by itself.
ADD COLUMN hash_error text;

ALTER TABLE registry.files
ADD CONSTRAINT file_is_hashed_or_has_a_source CHECK (
    CASE
        WHEN content_hash IS NULL THEN source_key IS NOT NULL
        ELSE size_bytes IS NOT NULL AND hash_error IS NULL
    END
) NOT VALID;

-- As before, but an owner may have any number of files that wait for their hash.
CREATE UNIQUE INDEX file_is_unique_per_owner_and_hash_idx
ON registry.files (content_hash, user_id, visitor_session_id)
NULLS NOT DISTINCT WHERE NOT forced AND content_hash IS NOT NULL;
DROP INDEX registry.file_is_unique_per_owner_idx;

-- Serves LIST_UNHASHED and COUNT_UNHASHED.
CREATE INDEX file_without_hash_idx ON registry.files (file_id) WHERE content_hash IS NULL;

-- Serve LIST_FILES: an owner's files, newest first.
CREATE INDEX file_by_age_of_user_idx ON registry.files (user_id, created_at DESC, file_id DESC)
WHERE user_id IS NOT NULL;
CREATE INDEX file_by_age_of_visitor_idx ON registry.files (visitor_session_id, created_at DESC, file_id DESC)
WHERE visitor_session_id IS NOT NULL;

-- Serves the invariants and the foreign key: the files of one document.
CREATE INDEX file_of_document_idx ON registry.files (content_hash) WHERE content_hash IS NOT NULL;
