-- Fingerprints of version 3 are not comparable with older ones: such pages are detected again, on first use. Pages
-- that cannot be read stay known as such.
DELETE FROM registry.canonical_page_metadata
WHERE fingerprint NOT LIKE '3:%';
