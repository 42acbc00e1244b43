-- squawk-ignore-file require-concurrent-index-creation
-- Row-level security shows the auditor every row, of every user: sums can only be checked over all of them. It may read
-- only; deploy/postgres/roles.sql makes it.
CREATE POLICY auditor_sees_all ON quota.accounts FOR SELECT TO glossa_auditor USING (true);
CREATE POLICY auditor_sees_all ON quota.explain_requests FOR SELECT TO glossa_auditor USING (true);
CREATE POLICY auditor_sees_all ON quota.ledger_entries FOR SELECT TO glossa_auditor USING (true);
CREATE POLICY auditor_sees_all ON quota.ai_request_log FOR SELECT TO glossa_auditor USING (true);
CREATE POLICY auditor_sees_all ON quota.user_preferences FOR SELECT TO glossa_auditor USING (true);
CREATE POLICY auditor_sees_all ON quota.ai_operations FOR SELECT TO glossa_auditor USING (true);
CREATE POLICY auditor_sees_all ON quota.spending FOR SELECT TO glossa_auditor USING (true);

-- Serves the doctor: what was charged lately. Rows come in the order of time, so a sparse index does; its column never
-- changes, so it costs updates nothing.
CREATE INDEX explain_requests_by_time_idx ON quota.explain_requests USING brin (created_at);
