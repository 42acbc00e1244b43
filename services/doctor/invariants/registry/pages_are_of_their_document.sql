-- What is known about pages is about pages that the document has.
-- If not: the page is explained from the wrong text. Delete the row: the page is looked at again on first use.
SELECT known.pdf_hash, known.page, document.total_pages
FROM registry.canonical_page_metadata AS known
LEFT JOIN registry.canonical_documents AS document USING (pdf_hash)
WHERE document.total_pages IS NULL OR known.page NOT BETWEEN 1 AND document.total_pages;
