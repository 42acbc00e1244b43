-- Under which preference a request was charged: what it costs when it is repriced, and whether a hit was shared.
ALTER TABLE quota.explain_requests ADD COLUMN share_to_cache boolean NOT NULL DEFAULT true;
