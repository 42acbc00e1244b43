-- A second fence: what is read for a user is read as this role, which sees that user's rows and nobody else's, whatever
-- the statement says. deploy/postgres/roles.sql makes it; the service may become it, nobody can log in as it.
GRANT USAGE ON SCHEMA quota TO glossa_quota_user;
GRANT SELECT ON
    quota.accounts, quota.explain_requests, quota.ledger_entries, quota.ai_request_log,
    quota.user_preferences, quota.ai_operations, quota.spending, quota.cost_lines
TO glossa_quota_user;

-- Nobody's rows unless somebody is named: a setting that is missing or empty equals no user_id.
ALTER TABLE quota.accounts ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows_only ON quota.accounts FOR SELECT
    USING (user_id = current_setting('glossa.user_id', true));
ALTER TABLE quota.explain_requests ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows_only ON quota.explain_requests FOR SELECT
    USING (user_id = current_setting('glossa.user_id', true));
ALTER TABLE quota.ledger_entries ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows_only ON quota.ledger_entries FOR SELECT
    USING (user_id = current_setting('glossa.user_id', true));
ALTER TABLE quota.ai_request_log ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows_only ON quota.ai_request_log FOR SELECT
    USING (user_id = current_setting('glossa.user_id', true));
ALTER TABLE quota.user_preferences ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows_only ON quota.user_preferences FOR SELECT
    USING (user_id = current_setting('glossa.user_id', true));
ALTER TABLE quota.ai_operations ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows_only ON quota.ai_operations FOR SELECT
    USING (user_id = current_setting('glossa.user_id', true));

-- What a generation cost tells nothing about anybody; a month's sum belongs to the user it names.
ALTER TABLE quota.spending ENABLE ROW LEVEL SECURITY;
CREATE POLICY own_rows_only ON quota.spending FOR SELECT
    USING (
        kind = 'generation'
        OR kind = 'user_month' AND starts_with(subject, current_setting('glossa.user_id', true) || ' ')
    );
