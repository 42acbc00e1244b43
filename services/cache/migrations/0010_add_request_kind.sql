-- What a request asks for: another kind under the same request_id is another request.
ALTER TABLE cache.requests ADD COLUMN kind text NOT NULL DEFAULT 'page_explanation';
