-- Every file with a hash has one reference, to its own document.
-- If not: the document may be collected while somebody holds it. Repair with the Registry's CheckReferenceHealth.
SELECT file.file_id, file.content_hash, reference.pdf_hash AS referred
FROM registry.files AS file
LEFT JOIN registry.canonical_document_refs AS reference
    ON reference.ref_type = 'file' AND reference.ref_id = file.file_id
WHERE file.content_hash IS NOT NULL AND reference.pdf_hash IS DISTINCT FROM file.content_hash;
