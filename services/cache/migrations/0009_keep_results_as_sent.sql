-- squawk-ignore-file ban-drop-constraint
-- Results as the bytes that go over the wire: taken from a worker and sent to readers without being turned into
-- JSON and back. Rows from before keep their JSON in `stickers`; nothing writes that column any more.
ALTER TABLE cache.generations
    ADD COLUMN result bytea,
    DROP CONSTRAINT generation_ready_has_result,
    ADD CONSTRAINT generation_ready_has_result
        CHECK ((status = 'ready') = (result IS NOT NULL OR stickers IS NOT NULL)) NOT VALID;
