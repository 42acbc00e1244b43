-- What the admin page shows, and nothing that quotes a document. deploy/postgres/roles.sql makes the role.
GRANT USAGE ON SCHEMA worker TO glossa_dashboard;
GRANT SELECT ON
    worker.sticker_metrics, worker.metric_hours, worker.dead_letters, worker.generation_events
TO glossa_dashboard;
