-- squawk-ignore-file require-concurrent-index-creation
-- Serve the doctor: what came lately. Rows come in the order of time, so sparse indexes do; their columns never change,
-- so leases and heartbeats stay HOT updates.
CREATE INDEX generations_by_time_idx ON cache.generations USING brin (created_at);
CREATE INDEX requests_by_time_idx ON cache.requests USING brin (created_at);
