-- What a model costs, in nano-dollars for a million tokens, from when on. A new price is a new row, never a change:
-- what was recorded stays as it was priced.
CREATE TABLE quota.model_prices (
    model text NOT NULL,
    valid_from timestamptz NOT NULL,
    input_nanodollars bigint NOT NULL,
    cached_input_nanodollars bigint NOT NULL,
    output_nanodollars bigint NOT NULL,
    CONSTRAINT model_price_is_one_at_a_time PRIMARY KEY (model, valid_from),
    CONSTRAINT model_price_is_not_negative
        CHECK (input_nanodollars >= 0 AND cached_input_nanodollars >= 0 AND output_nanodollars >= 0)
);

INSERT INTO quota.model_prices
    (model, valid_from, input_nanodollars, cached_input_nanodollars, output_nanodollars)
VALUES
    ('offline-extractive', '2025-01-01Z', 0, 0, 0),
    ('gpt-4.1', '2025-04-14Z', 2000000000, 500000000, 8000000000),
    ('gpt-4.1-mini', '2025-04-14Z', 400000000, 100000000, 1600000000),
    ('gpt-4.1-nano', '2025-04-14Z', 100000000, 25000000, 400000000),
    ('gpt-4o', '2024-10-01Z', 2500000000, 1250000000, 10000000000),
    ('gpt-4o-mini', '2024-10-01Z', 150000000, 75000000, 600000000),
    ('gpt-5', '2025-08-07Z', 1250000000, 125000000, 10000000000),
    ('gpt-5-mini', '2025-08-07Z', 250000000, 25000000, 2000000000),
    ('gpt-5-nano', '2025-08-07Z', 50000000, 5000000, 400000000),
    ('text-embedding-3-small', '2024-01-25Z', 20000000, 20000000, 0),
    -- No price for cached input is on record: it counts as input.
    ('gemini-2.0-flash', '2025-10-01Z', 100000000, 100000000, 400000000);
