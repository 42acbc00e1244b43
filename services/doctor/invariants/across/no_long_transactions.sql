-- No transaction holds a snapshot or rows for longer than work takes: it makes every queue slow.
-- If not: end it with pg_terminate_backend, and find out who opened it.
-- Needs: pg_read_all_stats
SELECT activity.pid, activity.usename, activity.application_name, activity.state, activity.xact_start
FROM pg_catalog.pg_stat_activity AS activity
WHERE activity.datname = current_database() AND activity.pid <> pg_backend_pid()
  AND activity.backend_type = 'client backend'
  -- Backups, and a doctor that looks at everything there is, take their time and come to an end.
  AND activity.application_name NOT IN ('pg_dump', 'pg_dumpall', 'glossa-doctor')
  AND (activity.backend_xmin IS NOT NULL OR activity.backend_xid IS NOT NULL)
  AND activity.xact_start < now() - current_setting('glossa.transaction')::interval;
