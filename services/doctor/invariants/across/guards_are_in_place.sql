-- The constraints, unique indexes and row fences that make violations impossible are there and enforced.
-- If not: what is listed no longer holds by itself. Make it again as its migration does, and run --full.
WITH wanted (kind, parent, name) AS (VALUES
    ('index', 'cache.generations', 'generation_one_live_idx'),
    ('index', 'cache.requests', 'requests_pkey'),
    ('index', 'quota.explain_requests', 'explain_requests_pkey'),
    ('index', 'quota.ledger_entries', 'ledger_entry_once_per_request_idx'),
    ('index', 'registry.files', 'file_is_unique_per_owner_and_hash_idx'),
    ('index', 'worker.generation_events', 'generation_events_pkey'),
    ('index', 'worker.generation_events', 'event_end_is_unique_idx'),
    ('constraint', 'cache.generations', 'generation_ready_has_result'),
    ('constraint', 'cache.generations', 'generation_ended_has_time'),
    ('constraint', 'cache.generations', 'generation_failed_has_reason'),
    ('constraint', 'cache.generations', 'generation_lease_is_whole'),
    ('constraint', 'cache.generations', 'generation_only_live_work_is_leased'),
    ('constraint', 'cache.generations', 'generation_released_were_leased'),
    ('constraint', 'cache.generations', 'generation_retired_is_ready'),
    ('constraint', 'cache.requests', 'request_attached_has_generation'),
    ('constraint', 'cache.requests', 'requests_generation_id_fkey'),
    ('constraint', 'quota.accounts', 'account_balance_is_never_negative'),
    ('constraint', 'quota.ledger_entries', 'ledger_entry_sign_fits_kind'),
    ('constraint', 'quota.explain_requests', 'explain_request_void_bought_nothing'),
    ('constraint', 'registry.canonical_documents', 'document_reference_count_is_never_negative'),
    ('constraint', 'registry.canonical_documents', 'document_is_unreferenced_or_counted'),
    ('constraint', 'registry.canonical_documents', 'document_being_collected_has_no_reference'),
    ('constraint', 'registry.canonical_document_refs', 'canonical_document_refs_pdf_hash_fkey'),
    ('fence', 'quota.accounts', 'own_rows_only'),
    ('fence', 'quota.explain_requests', 'own_rows_only'),
    ('fence', 'quota.ledger_entries', 'own_rows_only'),
    ('fence', 'quota.ai_request_log', 'own_rows_only'),
    ('fence', 'quota.user_preferences', 'own_rows_only'),
    ('fence', 'quota.ai_operations', 'own_rows_only'),
    ('fence', 'quota.spending', 'own_rows_only')
)
SELECT wanted.kind, wanted.parent, wanted.name
FROM wanted
WHERE NOT CASE wanted.kind
    WHEN 'index' THEN EXISTS (
        SELECT FROM pg_catalog.pg_index AS guard
        INNER JOIN pg_catalog.pg_class AS thing ON thing.oid = guard.indexrelid
        WHERE guard.indrelid = to_regclass(wanted.parent) AND thing.relname = wanted.name
          AND guard.indisunique AND guard.indisvalid AND guard.indisready
    )
    WHEN 'constraint' THEN EXISTS (
        SELECT FROM pg_catalog.pg_constraint AS guard
        WHERE guard.conrelid = to_regclass(wanted.parent) AND guard.conname = wanted.name
          -- Foreign keys are triggers, which can be switched off.
          AND NOT EXISTS (
              SELECT FROM pg_catalog.pg_trigger AS enforcing
              WHERE enforcing.tgconstraint = guard.oid AND enforcing.tgenabled = 'D'
          )
    )
    ELSE EXISTS (
        SELECT FROM pg_catalog.pg_policy AS guard
        INNER JOIN pg_catalog.pg_class AS thing ON thing.oid = guard.polrelid
        WHERE guard.polrelid = to_regclass(wanted.parent) AND guard.polname = wanted.name AND thing.relrowsecurity
    )
END;
