-- How often leases ran out and the sweep gave up, by UTC day, for people to look at. A row is touched only when
-- something went wrong.
CREATE TABLE cache.daily_losses (
    day date NOT NULL,
    what text NOT NULL,
    number bigint NOT NULL,
    -- Serves ADD_LOSSES and LIST_LOSSES.
    CONSTRAINT losses_are_counted_once PRIMARY KEY (day, what),
    CONSTRAINT loss_is_known CHECK (what IN ('lease_expired', 'attempts_spent', 'queue_timeout')),
    CONSTRAINT losses_are_positive CHECK (number > 0)
);
