-- What nobody refers to says since when, and only that is being collected.
-- If not: a document goes while it is held, or stays for ever. Is document_is_unreferenced_or_counted in place?
SELECT pdf_hash, reference_count, unreferenced_at, collecting_at
FROM registry.canonical_documents
WHERE (reference_count = 0) <> (unreferenced_at IS NOT NULL)
   OR (collecting_at IS NOT NULL AND reference_count > 0);
