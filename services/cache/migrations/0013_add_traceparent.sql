-- Which trace a generation belongs to, so that the worker's part of it joins in; null while nobody traces.
ALTER TABLE cache.generations ADD COLUMN traceparent text;
