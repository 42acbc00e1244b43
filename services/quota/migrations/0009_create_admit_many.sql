-- The rules of admission as SQL, so that a batch is decided in one round trip. tests/quota/model.py says the same in
-- plain Python, and a property test holds one against the other.
--
-- `rules` is configuration, given with every call:
--   {"endpoints": [name], "period_seconds": n, "prices": {outcome: units}, "plans": [{"plan", "units"}],
--    "soft_seconds", "hard_seconds", "daily_seconds": lengths of the windows,
--    "limits": [{"plan", "endpoint", "hard_limit", "daily_limit"}], "shadow": bool,
--    "monthly_budget", "daily_ceiling", "document_ceiling": nano-dollars or null}
-- `moment` is NULL in production: the database clock, read once the locks are held.

-- What an outcome costs. Who does not share gets nothing free.
CREATE FUNCTION quota.price_of(rules jsonb, outcome text, share_to_cache boolean) RETURNS bigint
LANGUAGE sql IMMUTABLE
RETURN CASE
    WHEN NOT share_to_cache AND (rules -> 'prices' ->> outcome)::bigint = 0
    THEN (rules -> 'prices' ->> 'generated')::bigint
    ELSE (rules -> 'prices' ->> outcome)::bigint
END;

-- How full the windows of a user are: admissions after each moment, and when the oldest of them was.
-- One index look-up for each number; written so that the planner folds it into the statement that asks.
CREATE FUNCTION quota.windows_of(
    wanted_user text, wanted_endpoint text, all_endpoints text[],
    soft_after timestamptz, hard_after timestamptz, daily_after timestamptz
) RETURNS TABLE (
    newest_sequence bigint, newest_at timestamptz,
    soft_used bigint, soft_since timestamptz,
    hard_used bigint, hard_since timestamptz,
    daily_used bigint, daily_since timestamptz
)
LANGUAGE sql STABLE AS $$
    SELECT newest.sequence, newest.admitted_at,
           coalesce(newest.sequence - soft.sequence + 1, 0), soft.admitted_at,
           coalesce(newest.sequence - hard.sequence + 1, 0), hard.admitted_at,
           coalesce(newest.sequence - daily.sequence + 1, 0) + coalesce(elsewhere.used, 0)::bigint,
           least(daily.admitted_at, elsewhere.since)
    FROM (VALUES (1)) AS always (one)
    LEFT JOIN LATERAL (
        SELECT log.sequence, log.admitted_at FROM quota.ai_request_log AS log
        WHERE log.user_id = wanted_user AND log.endpoint = wanted_endpoint
        ORDER BY log.admitted_at DESC, log.sequence DESC LIMIT 1
    ) AS newest ON true
    LEFT JOIN LATERAL (
        SELECT log.sequence, log.admitted_at FROM quota.ai_request_log AS log
        WHERE log.user_id = wanted_user AND log.endpoint = wanted_endpoint AND log.admitted_at > soft_after
        ORDER BY log.admitted_at, log.sequence LIMIT 1
    ) AS soft ON true
    LEFT JOIN LATERAL (
        SELECT log.sequence, log.admitted_at FROM quota.ai_request_log AS log
        WHERE log.user_id = wanted_user AND log.endpoint = wanted_endpoint AND log.admitted_at > hard_after
        ORDER BY log.admitted_at, log.sequence LIMIT 1
    ) AS hard ON true
    LEFT JOIN LATERAL (
        SELECT log.sequence, log.admitted_at FROM quota.ai_request_log AS log
        WHERE log.user_id = wanted_user AND log.endpoint = wanted_endpoint AND log.admitted_at > daily_after
        ORDER BY log.admitted_at, log.sequence LIMIT 1
    ) AS daily ON true
    -- The daily window counts the other endpoints too.
    LEFT JOIN LATERAL (
        SELECT sum(last.sequence - first.sequence + 1) AS used, min(first.admitted_at) AS since
        FROM unnest(array_remove(all_endpoints, wanted_endpoint)) AS each (endpoint)
        CROSS JOIN LATERAL (
            SELECT log.sequence, log.admitted_at FROM quota.ai_request_log AS log
            WHERE log.user_id = wanted_user AND log.endpoint = each.endpoint AND log.admitted_at > daily_after
            ORDER BY log.admitted_at, log.sequence LIMIT 1
        ) AS first
        CROSS JOIN LATERAL (
            SELECT log.sequence FROM quota.ai_request_log AS log
            WHERE log.user_id = wanted_user AND log.endpoint = each.endpoint
            ORDER BY log.admitted_at DESC, log.sequence DESC LIMIT 1
        ) AS last
    ) AS elsewhere ON true
$$;

-- Opens the accounts that are missing, locks all of them in one order, and starts the periods that are due.
CREATE FUNCTION quota.lock_accounts(rules jsonb, user_ids text[], moment timestamptz) RETURNS timestamptz
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    first_end timestamptz;
BEGIN
    -- Before any lock is held, and in the order of locking: two batches cannot wait for each other.
    INSERT INTO quota.accounts (user_id, balance_units, period_ends_at)
    SELECT DISTINCT wanted.user_id, 0, coalesce(moment, clock_timestamp())
    FROM unnest(user_ids) AS wanted (user_id)
    WHERE NOT EXISTS (SELECT FROM quota.accounts AS account WHERE account.user_id = wanted.user_id)
    ORDER BY wanted.user_id
    ON CONFLICT (user_id) DO NOTHING;

    SELECT min(locked.period_ends_at) INTO first_end
    FROM (
        SELECT account.period_ends_at FROM quota.accounts AS account
        WHERE account.user_id = ANY (user_ids) ORDER BY account.user_id FOR UPDATE
    ) AS locked;

    -- now() may be older than an admission this transaction has waited for.
    moment := coalesce(moment, clock_timestamp());
    IF first_end <= moment THEN
        PERFORM quota.roll_periods(rules, user_ids, moment);
    END IF;
    RETURN moment;
END
$$;

-- Ends periods that are over: what was left expires, the plan's allowance is granted. The accounts are locked.
CREATE FUNCTION quota.roll_periods(rules jsonb, user_ids text[], moment timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    period interval := make_interval(secs => (rules ->> 'period_seconds')::double precision);
    due record;
BEGIN
    FOR due IN
        SELECT account.user_id, account.balance_units, account.period_ends_at, plan.units
        FROM quota.accounts AS account
        JOIN jsonb_to_recordset(rules -> 'plans') AS plan (plan text, units bigint) USING (plan)
        WHERE account.user_id = ANY (user_ids) AND account.period_ends_at <= moment
    LOOP
        IF due.balance_units > 0 THEN
            INSERT INTO quota.ledger_entries (user_id, kind, units, reason, created_at)
            VALUES (due.user_id, 'expire', -due.balance_units, '', moment);
        END IF;
        INSERT INTO quota.ledger_entries (user_id, kind, units, reason, created_at)
        VALUES (due.user_id, 'grant', due.units, '', moment);
        UPDATE quota.accounts AS account
        SET balance_units = due.units,
            -- Whole periods after the last end, until one ends in the future.
            period_ends_at = due.period_ends_at + period * (
                floor(extract(epoch FROM moment - due.period_ends_at) / extract(epoch FROM period)) + 1
            )::double precision
        WHERE account.user_id = due.user_id;
    END LOOP;
END
$$;

-- When the entry leaves that must leave before one more fits: the `spare`-th newest is the oldest that may stay out.
-- Only asked for a refusal, so it may read as many entries as the window holds. Every endpoint where none is named.
CREATE FUNCTION quota.leaves_at(
    wanted_user text, wanted_endpoint text, window_limit bigint, added bigint,
    window_seconds double precision, added_at timestamptz
) RETURNS timestamptz
LANGUAGE sql STABLE AS $$
    SELECT make_interval(secs => window_seconds) + CASE
        -- All that may stay was let in by this very batch.
        WHEN added >= window_limit THEN added_at
        ELSE (
            SELECT log.admitted_at FROM quota.ai_request_log AS log
            WHERE log.user_id = wanted_user
                AND (wanted_endpoint IS NULL OR log.endpoint = wanted_endpoint)
            ORDER BY log.admitted_at DESC, log.sequence DESC
            OFFSET greatest(window_limit - added - 1, 0) LIMIT 1
        )
    END
$$;

-- Whether money forbids making something new: "budget_exhausted", "spending_ceiling" or NULL, and until when.
CREATE FUNCTION quota.money_forbids(
    rules jsonb, wanted_user text, wanted_hash text, moment timestamptz, OUT decision text, OUT until timestamptz
)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    today text := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD');
    this_month text := to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM');
BEGIN
    IF (rules ->> 'monthly_budget')::bigint
        <= (SELECT cost_nanodollars FROM quota.spending
            WHERE kind = 'user_month' AND subject = wanted_user || ' ' || this_month)
    THEN
        decision := 'budget_exhausted';
        until := (date_trunc('month', moment AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC';
    ELSIF (rules ->> 'daily_ceiling')::bigint
        <= (SELECT cost_nanodollars FROM quota.spending WHERE kind = 'day' AND subject = today)
    THEN
        decision := 'spending_ceiling';
        until := (date_trunc('day', moment AT TIME ZONE 'UTC') + interval '1 day') AT TIME ZONE 'UTC';
    ELSIF (rules ->> 'document_ceiling')::bigint
        <= (SELECT cost_nanodollars FROM quota.spending WHERE kind = 'document' AND subject = wanted_hash)
    THEN
        decision := 'spending_ceiling';
    END IF;
END
$$;

-- Decides a batch in the order given, each request seeing what those before it were given. All or nothing for each:
-- an admitted request has its charge, its entry and its place in the windows; a refused one leaves no trace. A
-- request_id may be in a batch once.
CREATE FUNCTION quota.admit_many(
    rules jsonb, request_ids uuid[], user_ids text[], endpoints text[], outcomes text[], generation_ids uuid[],
    pdf_hashes text[], pages integer[], locales text[], effective_modes text[], expected_shares boolean[],
    moment timestamptz
) RETURNS TABLE (
    "position" bigint, decision text, units bigint, remaining_units bigint, share_to_cache boolean,
    retry_after interval, outcome text, generation_id uuid, plan text, shadow_decision text,
    soft_used bigint, soft_since timestamptz, hard_used bigint, hard_since timestamptz,
    daily_used bigint, daily_since timestamptz
)
LANGUAGE plpgsql
-- Index look-ups whatever the statistics say: they are gathered long after a table has grown.
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    item record;
    shadow boolean := (rules ->> 'shadow')::boolean;
    all_endpoints text[] := ARRAY(SELECT jsonb_array_elements_text(rules -> 'endpoints'));
    hard_seconds double precision := rules ->> 'hard_seconds';
    daily_seconds double precision := rules ->> 'daily_seconds';
    -- The user whose requests are being decided, and what the batch has done to its book so far.
    book_user text;
    balance bigint;
    let_in text[];
    let_in_here bigint;
    -- The limits of that user's plan at this endpoint.
    tier_plan text;
    tier_endpoint text;
    hard_limit bigint;
    daily_limit bigint;
    price bigint;
    money record;
    -- When this batch's admissions count; never before an earlier one, should the clock have gone back.
    stamp timestamptz;
    -- By position in the batch: what is charged, NULL for nothing, and what is written down with it.
    charged_units bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(request_ids)]);
    charged_shares boolean[] := array_fill(NULL::boolean, ARRAY[cardinality(request_ids)]);
    stamps timestamptz[] := array_fill(NULL::timestamptz, ARRAY[cardinality(request_ids)]);
    sequences bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(request_ids)]);
BEGIN
    moment := quota.lock_accounts(rules, user_ids, moment);

    FOR item IN
        SELECT asked.*, account.balance_units, account.plan,
               coalesce(preference.share_to_cache, true) AS shares,
               charge.user_id AS paid_by, charge.status AS paid_status, charge.quota_units AS paid_units,
               charge.outcome AS paid_outcome, charge.generation_id AS paid_generation,
               (charge.endpoint, charge.pdf_hash, charge.page, charge.locale, charge.effective_mode)
                   = (asked.endpoint, asked.pdf_hash, asked.page, asked.locale, asked.effective_mode)
                   AS same_purchase,
               used.*
        FROM unnest(
            request_ids, user_ids, endpoints, outcomes, pdf_hashes, pages, locales, effective_modes, expected_shares
        ) WITH ORDINALITY AS asked (
            request_id, user_id, endpoint, outcome, pdf_hash, page, locale, effective_mode, expected_share,
            "position"
        )
        JOIN quota.accounts AS account ON account.user_id = asked.user_id
        LEFT JOIN quota.user_preferences AS preference ON preference.user_id = asked.user_id
        LEFT JOIN quota.explain_requests AS charge ON charge.request_id = asked.request_id
        CROSS JOIN LATERAL quota.windows_of(
            asked.user_id, asked.endpoint, all_endpoints,
            moment - make_interval(secs => (rules ->> 'soft_seconds')::double precision),
            moment - make_interval(secs => hard_seconds), moment - make_interval(secs => daily_seconds)
        ) AS used
        ORDER BY asked.user_id, asked."position"
    LOOP
        IF item.user_id IS DISTINCT FROM book_user THEN
            book_user := item.user_id;
            balance := item.balance_units;
            let_in := '{}';
        END IF;
        IF item.plan IS DISTINCT FROM tier_plan OR item.endpoint IS DISTINCT FROM tier_endpoint THEN
            SELECT given.* INTO STRICT tier_plan, tier_endpoint, hard_limit, daily_limit
            FROM jsonb_to_recordset(rules -> 'limits')
                AS given (plan text, endpoint text, hard_limit bigint, daily_limit bigint)
            WHERE given.plan = item.plan AND given.endpoint = item.endpoint;
        END IF;
        price := quota.price_of(rules, item.outcome, item.shares);
        let_in_here := cardinality(array_positions(let_in, item.endpoint));
        stamp := greatest(moment, item.newest_at);
        "position" := item."position";
        share_to_cache := item.shares;
        plan := item.plan;
        soft_used := item.soft_used + let_in_here;
        hard_used := item.hard_used + let_in_here;
        daily_used := item.daily_used + cardinality(let_in);
        units := 0;
        retry_after := NULL;
        outcome := NULL;
        generation_id := NULL;
        shadow_decision := NULL;

        decision := CASE
            WHEN item.paid_by <> item.user_id THEN 'request_id_reused'
            WHEN item.paid_status <> 'charged' THEN 'request_id_dead'
            WHEN item.paid_by IS NOT NULL AND NOT item.same_purchase THEN 'request_id_reused'
            WHEN item.paid_by IS NOT NULL THEN 'replayed'
            WHEN item.expected_share <> item.shares THEN 'preference_changed'
            WHEN hard_used >= hard_limit OR daily_used >= daily_limit THEN 'rate_limited'
            WHEN balance < price THEN 'quota_exhausted'
            ELSE 'admitted'
        END;

        IF decision = 'replayed' THEN
            units := item.paid_units;
            outcome := item.paid_outcome;
            generation_id := item.paid_generation;
        ELSIF decision = 'rate_limited' THEN
            -- Both windows must have room: the later of the two.
            retry_after := greatest(
                CASE WHEN hard_used >= hard_limit THEN quota.leaves_at(
                    item.user_id, item.endpoint, hard_limit, let_in_here, hard_seconds, stamp
                ) END,
                CASE WHEN daily_used >= daily_limit THEN quota.leaves_at(
                    item.user_id, NULL, daily_limit, cardinality(let_in), daily_seconds, stamp
                ) END
            ) - moment;
        ELSIF decision = 'admitted' AND item.outcome = 'generated' THEN
            -- Only making something new costs money.
            money := quota.money_forbids(rules, item.user_id, item.pdf_hash, moment);
            decision := coalesce(money.decision, decision);
            retry_after := money.until - moment;
        END IF;

        -- In shadow mode limits are decided and told, but let everybody pass; units are still needed.
        IF shadow AND decision IN ('rate_limited', 'budget_exhausted', 'spending_ceiling') THEN
            shadow_decision := decision;
            decision := CASE WHEN balance < price THEN 'quota_exhausted' ELSE 'admitted' END;
            retry_after := NULL;
        END IF;

        IF decision = 'admitted' THEN
            units := price;
            balance := balance - price;
            let_in := let_in || item.endpoint;
            soft_used := soft_used + 1;
            hard_used := hard_used + 1;
            daily_used := daily_used + 1;
            charged_units["position"] := price;
            charged_shares["position"] := item.shares;
            stamps["position"] := stamp;
            sequences["position"] := coalesce(item.newest_sequence, 0) + let_in_here + 1;
        END IF;
        remaining_units := balance;
        soft_since := CASE WHEN soft_used > 0 THEN coalesce(item.soft_since, stamp) END;
        hard_since := CASE WHEN hard_used > 0 THEN coalesce(item.hard_since, stamp) END;
        daily_since := CASE WHEN daily_used > 0 THEN coalesce(item.daily_since, stamp) END;
        RETURN NEXT;
    END LOOP;

    INSERT INTO quota.explain_requests (
        request_id, user_id, endpoint, outcome, generation_id, pdf_hash, page, locale, effective_mode,
        quota_units, share_to_cache, status, created_at
    )
    SELECT charge.*, 'charged', moment
    FROM unnest(
        request_ids, user_ids, endpoints, outcomes, generation_ids, pdf_hashes, pages, locales, effective_modes,
        charged_units, charged_shares
    ) AS charge (
        request_id, user_id, endpoint, outcome, generation_id, pdf_hash, page, locale, effective_mode,
        quota_units, share_to_cache
    )
    WHERE charge.quota_units IS NOT NULL;

    INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at, sequence)
    SELECT admission.*
    FROM unnest(user_ids, endpoints, stamps, sequences) AS admission (user_id, endpoint, admitted_at, sequence)
    WHERE admission.sequence IS NOT NULL;

    INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason, created_at)
    SELECT charge.user_id, charge.request_id, 'charge', -charge.quota_units, charge.outcome, moment
    FROM unnest(user_ids, request_ids, outcomes, charged_units)
        AS charge (user_id, request_id, outcome, quota_units)
    WHERE charge.quota_units IS NOT NULL;

    -- By the sum of the entries written with it: balance and entries cannot drift apart.
    UPDATE quota.accounts AS account
    SET balance_units = account.balance_units - spent.units
    FROM (
        SELECT charge.user_id, sum(charge.quota_units) AS units
        FROM unnest(user_ids, charged_units) AS charge (user_id, quota_units) GROUP BY charge.user_id
    ) AS spent
    WHERE account.user_id = spent.user_id AND spent.units > 0;
END
$$;
