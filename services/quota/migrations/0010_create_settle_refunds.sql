-- The rules of refunds as SQL, beside those of admission; `rules` and `moment` as there.
-- Settles a batch in the order given: at most once for each charge; an unknown request_id is voided.
CREATE FUNCTION quota.settle_refunds(
    rules jsonb, request_ids uuid[], user_ids text[], reasons text[], served_as text[], generation_ids uuid[],
    moment timestamptz
) RETURNS TABLE ("position" bigint, result text, units bigint, remaining_units bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    item record;
    charge quota.explain_requests;
    -- What goes back, and how the entry is called.
    back bigint;
    entry_kind text;
BEGIN
    moment := quota.lock_accounts(rules, user_ids, moment);

    FOR item IN
        SELECT asked.* FROM unnest(request_ids, user_ids, reasons, served_as, generation_ids)
            WITH ORDINALITY AS asked (request_id, user_id, reason, served_as, generation_id, "position")
        ORDER BY asked."position"
    LOOP
        SELECT found.* INTO charge FROM quota.explain_requests AS found
        WHERE found.request_id = item.request_id;
        back := 0;
        entry_kind := NULL;

        IF charge.request_id IS NULL THEN
            -- Refunded before it was charged: the charge that may still come must not land.
            INSERT INTO quota.explain_requests
                (request_id, user_id, quota_units, status, refund_reason, created_at, refunded_at)
            VALUES (item.request_id, item.user_id, 0, 'void', item.reason, moment, moment)
            RETURNING * INTO charge;
            result := 'voided';
            entry_kind := 'void';
        ELSIF charge.user_id <> item.user_id OR charge.status <> 'charged'
            -- A hit has bought what was there: no later call with its id can undo that.
            OR item.reason = 'request_aborted' AND charge.outcome = 'cached'
            -- Only work charged as one's own can turn out to be somebody else's, and only once.
            OR item.reason = 'repriced' AND (charge.outcome <> 'generated' OR item.served_as = 'generated')
        THEN
            result := 'already_settled';
        ELSIF item.reason = 'repriced' THEN
            back := greatest(
                0, charge.quota_units - quota.price_of(rules, item.served_as, charge.share_to_cache)
            );
            UPDATE quota.explain_requests AS target
            SET outcome = item.served_as, quota_units = target.quota_units - back,
                generation_id = coalesce(item.generation_id, target.generation_id)
            WHERE target.request_id = item.request_id
            RETURNING target.* INTO charge;
            result := 'repriced';
            entry_kind := 'reprice';
        ELSE
            back := charge.quota_units;
            UPDATE quota.explain_requests AS target
            SET status = 'refunded', refund_reason = item.reason, refunded_at = moment
            WHERE target.request_id = item.request_id
            RETURNING target.* INTO charge;
            result := 'refunded';
            entry_kind := 'refund';
        END IF;

        IF entry_kind IS NOT NULL THEN
            INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason, created_at)
            VALUES (
                item.user_id, item.request_id, entry_kind, back,
                CASE WHEN entry_kind = 'reprice' THEN item.served_as ELSE item.reason END, moment
            );
        END IF;
        UPDATE quota.accounts AS account SET balance_units = account.balance_units + back
        WHERE account.user_id = item.user_id
        RETURNING account.balance_units INTO remaining_units;
        "position" := item."position";
        units := CASE WHEN charge.status = 'charged' THEN charge.quota_units ELSE 0 END;
        RETURN NEXT;
    END LOOP;
END
$$;

-- An admin gives a user the full allowance again; the same reset_id does it once.
CREATE FUNCTION quota.reset_quota(
    rules jsonb, wanted_user text, reset_id uuid, reason text, clear_windows boolean, moment timestamptz
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    changed bigint;
    balance bigint;
BEGIN
    moment := quota.lock_accounts(rules, ARRAY[wanted_user], moment);

    SELECT plan.units - account.balance_units, account.balance_units INTO STRICT changed, balance
    FROM quota.accounts AS account
    JOIN jsonb_to_recordset(rules -> 'plans') AS plan (plan text, units bigint) USING (plan)
    WHERE account.user_id = wanted_user;

    IF EXISTS (
        SELECT FROM quota.ledger_entries
        WHERE request_id = reset_id AND kind = 'reset' AND user_id = wanted_user
    )
    THEN
        RETURN balance;
    END IF;
    INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason, created_at)
    VALUES (wanted_user, reset_id, 'reset', changed, reset_quota.reason, moment);
    UPDATE quota.accounts SET balance_units = balance_units + changed WHERE user_id = wanted_user;
    IF clear_windows THEN
        DELETE FROM quota.ai_request_log WHERE user_id = wanted_user;
    END IF;
    RETURN balance + changed;
END
$$;
