-- Every reference of a file has its file.
-- If not: the document is never collected. Repair with the Registry's CheckReferenceHealth.
SELECT reference.ref_id AS file_id, reference.pdf_hash
FROM registry.canonical_document_refs AS reference
LEFT JOIN registry.files AS file ON file.file_id = reference.ref_id
WHERE reference.ref_type = 'file' AND file.content_hash IS NULL;
