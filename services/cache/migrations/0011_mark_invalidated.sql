-- Work that was taken out of service has not failed at anything: nobody is to start it anew. Serves LIST_FAILED.
ALTER TABLE cache.generations ADD COLUMN invalidated boolean NOT NULL DEFAULT false;
