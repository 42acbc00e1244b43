-- A document's count is the number of its references.
-- If not: its bytes go too early or never. Repair with the Registry's CheckReferenceHealth.
SELECT document.pdf_hash, document.reference_count AS counted, count(reference.ref_id) AS actual
FROM registry.canonical_documents AS document
LEFT JOIN registry.canonical_document_refs AS reference USING (pdf_hash)
GROUP BY document.pdf_hash
HAVING document.reference_count <> count(reference.ref_id);
