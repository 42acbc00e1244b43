"""One violation for each invariant, planted past everything that forbids it."""

from dataclasses import dataclass, field

GUARDS = "across/guards_are_in_place"


@dataclass(frozen=True, kw_only=True)
class Planting:
    """What a superuser does to a sound database, and who else must notice."""

    sql: str
    also: frozenset[str] = field(default=frozenset())


def planted(*sql: str, also: tuple[str, ...] = ()) -> Planting:
    return Planting(sql=";\n".join(sql), also=frozenset(also))


def unguarded(table: str, constraint: str, *sql: str) -> Planting:
    """What a constraint forbids while it is there; that it is gone is noticed as well."""
    return planted(f"ALTER TABLE {table} DROP CONSTRAINT {constraint}", *sql, also=(GUARDS,))


def of(n: int) -> str:
    return f"generation_id = md5('generation{n}')::uuid"


def asked(n: int) -> str:
    return f"request_id = md5('request{n}')::uuid"


READY, FAILED, RUNNING = 10, 57, 250  # see history.py
AN_HOUR_AGO = "now() - interval '1 hour'"
PAID_BACK = (
    "INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason) SELECT user_id,"
    f" request_id, 'refund', 1, '' FROM quota.explain_requests WHERE {asked(READY)}",
    f"UPDATE quota.accounts SET balance_units = balance_units + 1 WHERE user_id = 'user-{READY}'",
)
ADMIT = "INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at, sequence)"
SAMPLE = (
    "INSERT INTO worker.sticker_latency_samples SELECT 'page_explanation', repeat('a', 64), 1,"
    " 'en', 'text_only', 'cached', true, 5, 0, 0, date_trunc('hour', now(), 'UTC')"
    " - interval '30 minutes'"
)
END_EVENT = f"{of(READY)} AND status = 'ready'"

REGISTRY = {
    "registry/reference_count_is_exact": planted(
        "UPDATE registry.canonical_documents SET reference_count = 2"
    ),
    "registry/files_have_their_reference": planted(
        "DELETE FROM registry.canonical_document_refs",
        "UPDATE registry.canonical_documents SET reference_count = 0, unreferenced_at = now()",
    ),
    "registry/references_have_their_file": planted(
        "INSERT INTO registry.canonical_document_refs (ref_type, ref_id, pdf_hash)"
        " SELECT 'file', gen_random_uuid(), pdf_hash FROM registry.canonical_documents",
        "UPDATE registry.canonical_documents SET reference_count = 2",
    ),
    "registry/only_unused_is_collected": unguarded(
        "registry.canonical_documents",
        "document_being_collected_has_no_reference",
        "UPDATE registry.canonical_documents SET collecting_at = now()",
    ),
    "registry/pages_are_of_their_document": planted(
        "INSERT INTO registry.canonical_page_metadata (pdf_hash, page, error_reason)"
        " SELECT pdf_hash, 51, 'PAGE_BROKEN' FROM registry.canonical_documents"
    ),
    "registry/callbacks_are_sent": planted(
        "INSERT INTO registry.callbacks (callback_id, file_id, url, state, run_after)"
        f" SELECT gen_random_uuid(), file_id, 'https://a', 'due', {AN_HOUR_AGO}"
        " FROM registry.files LIMIT 1"
    ),
}

CACHE = {
    "cache/single_flight_per_key": planted(
        "DROP INDEX cache.generation_one_live_idx",
        f"CREATE TEMPORARY TABLE twin AS SELECT * FROM cache.generations WHERE {of(READY)}",
        "UPDATE twin SET generation_id = gen_random_uuid()",
        "INSERT INTO cache.generations SELECT * FROM twin",
        also=(GUARDS,),
    ),
    "cache/ready_has_a_result": unguarded(
        "cache.generations",
        "generation_ready_has_result",
        f"UPDATE cache.generations SET result = NULL WHERE {of(READY)}",
    ),
    "cache/lease_is_whole": unguarded(
        "cache.generations",
        "generation_lease_is_whole",
        f"UPDATE cache.generations SET leased_by = 'worker' WHERE {of(RUNNING)}",
    ),
    "cache/attempts_are_within_bounds": planted(
        f"UPDATE cache.generations SET attempts = 4 WHERE {of(READY)}"
    ),
    "cache/attempt_numbers_are_never_reused": planted(
        f"UPDATE cache.generations SET failures = failures || failures WHERE {of(FAILED)}"
    ),
    "cache/an_end_is_an_end": planted(
        "UPDATE cache.generations SET started_at = completed_at + interval '1 second'"
        f" WHERE {of(READY)}"
    ),
    "cache/a_result_is_accepted_once": planted(
        "UPDATE cache.requests SET updated_at = updated_at - interval '1 minute'"
        f" WHERE {asked(READY)}"
    ),
    "cache/waiters_wait_for_running_work": planted(
        f"UPDATE cache.requests SET state = 'waiting' WHERE {asked(READY)}"
    ),
    "cache/request_has_what_it_asked_for": planted(
        f"UPDATE cache.generations SET scope = 'user:mallory' WHERE {of(READY)}"
    ),
    "cache/intents_come_to_an_end": planted(
        "INSERT INTO cache.requests (request_id, user_id, pdf_hash, page, locale, nonce,"
        " held_until, outcome, updated_at) SELECT gen_random_uuid(), 'u', 'x', 1, 'en',"
        f" gen_random_uuid(), now(), 'generated', {AN_HOUR_AGO}"
    ),
    "cache/refunds_are_delivered": planted(
        "INSERT INTO cache.outbox (request_id, user_id, reason, created_at) SELECT request_id,"
        f" user_id, 'generation_failed', {AN_HOUR_AGO} FROM cache.requests WHERE {asked(FAILED)}"
    ),
    "cache/refunds_are_due": planted(
        "INSERT INTO cache.outbox (request_id, user_id, reason) SELECT request_id,"
        f" user_id, 'generation_failed' FROM cache.requests WHERE {asked(READY)}"
    ),
    "cache/no_zombie_leases": planted(
        "UPDATE cache.generations SET attempts = 1, leased_by = 'worker',"
        f" leased_until = {AN_HOUR_AGO}, deadline_at = {AN_HOUR_AGO} WHERE {of(RUNNING)}"
    ),
    "cache/no_starved_jobs": planted(
        f"UPDATE cache.generations SET run_after = {AN_HOUR_AGO} - interval '1 hour'"
        f" WHERE {of(RUNNING)}"
    ),
}

QUOTA = {
    "quota/balance_is_the_sum_of_its_entries": planted(
        "UPDATE quota.accounts SET balance_units = balance_units + 1 WHERE user_id = 'user-10'"
    ),
    "quota/balance_is_never_negative": unguarded(
        "quota.accounts",
        "account_balance_is_never_negative",
        "INSERT INTO quota.ledger_entries (user_id, kind, units, reason) SELECT user_id, 'reset',"
        " -1 - balance_units, '' FROM quota.accounts WHERE user_id = 'user-10'",
        "UPDATE quota.accounts SET balance_units = -1 WHERE user_id = 'user-10'",
    ),
    "quota/charge_agrees_with_its_entries": planted(
        f"UPDATE quota.explain_requests SET quota_units = 2 WHERE {asked(READY)}"
    ),
    "quota/entries_have_their_request": planted(
        "INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)"
        " VALUES ('user-10', gen_random_uuid(), 'charge', 0, '')"
    ),
    "quota/refund_comes_at_most_once": planted(
        "DROP INDEX quota.ledger_entry_once_per_request_idx",
        "INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)"
        " SELECT user_id, request_id, 'refund', 0, '' FROM quota.explain_requests"
        f" WHERE {asked(FAILED)}",
        also=(GUARDS, "quota/charge_agrees_with_its_entries"),
    ),
    "quota/no_window_above_its_limit": planted(
        f"{ADMIT} SELECT 'user-10', 'explain_page', now() - n * interval '0.9 seconds', 100 - n"
        " FROM generate_series(1, 11) AS n"
    ),
    "quota/admissions_have_their_own_number": planted(
        f"{ADMIT} SELECT user_id, endpoint, now(), sequence FROM quota.ai_request_log LIMIT 1"
    ),
    "quota/spending_is_the_sum_of_operations": planted(
        "UPDATE quota.spending SET cost_nanodollars = cost_nanodollars + 1 WHERE kind = 'day'"
    ),
    "quota/nobody_may_rewrite_the_ledger": planted(
        "GRANT UPDATE ON quota.ledger_entries TO glossa_quota"
    ),
}

WORKER = {
    "worker/events_have_no_gap": planted(
        f"DELETE FROM worker.generation_events WHERE {of(READY)} AND sequence = 2"
    ),
    "worker/attempts_of_events_only_rise": planted(
        f"UPDATE worker.generation_events SET attempt = 0 WHERE {of(READY)} AND sequence = 3"
    ),
    "worker/events_end_once": planted(
        "INSERT INTO worker.generation_events (generation_id, sequence, attempt, status, stage)"
        f" VALUES (md5('generation{READY}')::uuid, 5, 1, 'generating', 'reading')"
    ),
    "worker/chunks_belong_to_their_plan": planted(
        "INSERT INTO worker.chunk_plans (generation_id, text_digest, chunk_ends)"
        f" VALUES (md5('generation{READY}')::uuid, repeat('a', 64), '{{7}}')",
        "INSERT INTO worker.chunk_explanations (generation_id, chunk, stickers)"
        f" VALUES (md5('generation{READY}')::uuid, 1, '[]')",
    ),
    "worker/hours_with_samples_are_marked": planted(SAMPLE),
    "worker/metrics_are_the_sum_of_samples": planted(
        SAMPLE,
        "INSERT INTO worker.metric_hours (hour, rolled_up_at)"
        " VALUES (date_trunc('hour', now(), 'UTC') - interval '1 hour', now())",
    ),
}

ACROSS = {
    "across/whoever_is_served_was_charged": planted(
        "UPDATE quota.explain_requests SET status = 'refunded', refunded_at = now(),"
        f" refund_reason = 'generation_failed' WHERE {asked(READY)}",
        *PAID_BACK,
    ),
    "across/nobody_pays_for_a_failure": planted(
        "UPDATE quota.explain_requests SET status = 'charged', refunded_at = NULL,"
        f" refund_reason = NULL WHERE {asked(FAILED)}",
        f"DELETE FROM quota.ledger_entries WHERE {asked(FAILED)} AND kind = 'refund'",
        "UPDATE quota.accounts SET balance_units = balance_units - 1"
        f" WHERE user_id = 'user-{FAILED}'",
        also=("across/every_charge_bought_something",),
    ),
    "across/every_charge_bought_something": planted(
        "INSERT INTO quota.explain_requests (request_id, user_id, endpoint, outcome, pdf_hash,"
        " page, locale, effective_mode, quota_units, status, created_at) VALUES"
        " (md5('lost')::uuid, 'user-10', 'explain_page', 'generated', repeat('a', 64), 1, 'en',"
        f" 'text_only', 1, 'charged', {AN_HOUR_AGO})",
        "INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason, created_at)"
        f" VALUES ('user-10', md5('lost')::uuid, 'charge', -1, '', {AN_HOUR_AGO})",
        "UPDATE quota.accounts SET balance_units = balance_units - 1 WHERE user_id = 'user-10'",
    ),
    "across/both_sides_know_the_same_request": planted(
        f"UPDATE quota.explain_requests SET user_id = 'user-11' WHERE {asked(READY)}",
        f"UPDATE quota.ledger_entries SET user_id = 'user-11' WHERE {asked(READY)}",
        "UPDATE quota.accounts SET balance_units = balance_units + 1 WHERE user_id = 'user-10'",
        "UPDATE quota.accounts SET balance_units = balance_units - 1 WHERE user_id = 'user-11'",
    ),
    "across/ends_are_the_same_everywhere": planted(
        f"UPDATE worker.generation_events SET status = 'failed', stage = 'failed' WHERE {END_EVENT}"
    ),
    "across/nothing_is_accepted_after_the_end": planted(
        "UPDATE worker.generation_events SET created_at = created_at - interval '1 minute'"
        f" WHERE {END_EVENT}"
    ),
    "across/every_attempt_was_leased": planted(
        f"UPDATE worker.generation_events SET attempt = 2 WHERE {END_EVENT}"
    ),
    "across/roles_stay_apart": planted("GRANT USAGE ON SCHEMA quota TO glossa_worker"),
    "across/guards_are_in_place": planted("ALTER TABLE quota.accounts DISABLE ROW LEVEL SECURITY"),
}

PLANTINGS = {**REGISTRY, **CACHE, **QUOTA, **WORKER, **ACROSS}

GENERATION = "cache.generations"
# Other ways to break the same promises: each part of a condition has one.
MORE = [
    ("across/roles_stay_apart", planted("GRANT SELECT (page) ON cache.requests TO glossa_quota")),
    ("across/roles_stay_apart", planted("GRANT INSERT ON cache.requests TO glossa_auditor")),
    ("across/roles_stay_apart", planted("GRANT SELECT ON cache.requests TO glossa_dashboard")),
    ("across/roles_stay_apart", planted("GRANT DELETE ON worker.dead_letters TO glossa_dashboard")),
    ("across/roles_stay_apart", planted("GRANT CREATE ON SCHEMA worker TO PUBLIC")),
    ("across/guards_are_in_place", planted("DROP POLICY own_rows_only ON quota.spending")),
    ("across/guards_are_in_place", planted("ALTER TABLE cache.requests DISABLE TRIGGER ALL")),
    (
        "across/guards_are_in_place",
        planted("ALTER TABLE cache.requests DROP CONSTRAINT request_attached_has_generation"),
    ),
    (
        "across/guards_are_in_place",
        planted(
            "UPDATE pg_index SET indisvalid = false"
            " WHERE indexrelid = 'worker.event_end_is_unique_idx'::regclass"
        ),
    ),
    (
        "across/ends_are_the_same_everywhere",
        planted(
            "INSERT INTO worker.dead_letters SELECT generation_id, kind, pdf_hash, page, locale,"
            " effective_mode, model, prompt_version, false, '', '', true, 1, '[]', 0, created_at,"
            f" completed_at FROM {GENERATION} WHERE {of(READY)}"
        ),
    ),
    (
        "across/every_attempt_was_leased",
        planted(
            "INSERT INTO quota.ai_operations SELECT gen_random_uuid(), user_id, generation_id, 2,"
            " endpoint, pdf_hash, page, model, 0, 0, 0, 0, outcome, 0, created_at"
            f" FROM quota.ai_operations WHERE {of(READY)}"
        ),
    ),
    (
        "across/both_sides_know_the_same_request",
        planted(f"UPDATE quota.explain_requests SET page = 99 WHERE {asked(READY)}"),
    ),
    (
        "cache/attempt_numbers_are_never_reused",
        planted(
            f"UPDATE {GENERATION} SET attempts = 0 WHERE {of(FAILED)}",
            f"UPDATE worker.generation_events SET attempt = 0 WHERE {of(FAILED)}",
            f"UPDATE quota.ai_operations SET attempt = 0 WHERE {of(FAILED)}",
        ),
    ),
    (
        "cache/attempts_are_within_bounds",
        unguarded(
            GENERATION,
            "generation_released_were_leased",
            f"UPDATE {GENERATION} SET released = 2 WHERE {of(READY)}",
        ),
    ),
    (
        "cache/lease_is_whole",
        planted(
            f"UPDATE {GENERATION} SET attempts = 1, leased_by = 'worker',"
            " leased_until = now() + interval '2 hours', deadline_at = now() + interval '1 hour'"
            f" WHERE {of(RUNNING)}"
        ),
    ),
    (
        "cache/lease_is_whole",
        unguarded(
            GENERATION,
            "generation_only_live_work_is_leased",
            f"UPDATE {GENERATION} SET leased_by = 'worker', leased_until = now(),"
            f" deadline_at = now() WHERE {of(READY)}",
        ),
    ),
    (
        "cache/ready_has_a_result",
        unguarded(
            GENERATION,
            "generation_failed_has_reason",
            f"UPDATE {GENERATION} SET error_reason = NULL WHERE {of(FAILED)}",
        ),
    ),
    (
        "cache/ready_has_a_result",
        planted(f"UPDATE {GENERATION} SET stage = 'reading' WHERE {of(READY)}"),
    ),
    (
        "cache/ready_has_a_result",
        unguarded(
            GENERATION,
            "generation_retired_is_ready",
            f"UPDATE {GENERATION} SET retired_at = now(), retired_reason = 'x' WHERE {of(FAILED)}",
        ),
    ),
    (
        "cache/waiters_wait_for_running_work",
        planted(f"UPDATE cache.requests SET state = 'served' WHERE {asked(RUNNING)}"),
    ),
    (
        "cache/request_has_what_it_asked_for",
        planted(f"UPDATE cache.requests SET kind = 'document_markdown' WHERE {asked(READY)}"),
    ),
    (
        "cache/refunds_are_due",
        planted(
            "INSERT INTO cache.outbox (request_id, user_id, reason)"
            f" SELECT request_id, 'mallory', 'generation_failed' FROM cache.requests"
            f" WHERE {asked(FAILED)}"
        ),
    ),
    (
        "quota/charge_agrees_with_its_entries",
        planted(
            "INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)"
            f" SELECT user_id, request_id, 'charge', 0, '' FROM quota.explain_requests"
            f" WHERE {asked(READY)}"
        ),
    ),
    (
        "quota/no_window_above_its_limit",
        planted(
            f"{ADMIT} SELECT 'user-10', 'explain_page', now() - n * interval '10 minutes', 200 - n"
            " FROM generate_series(1, 100) AS n"
        ),
    ),
    (
        "quota/spending_is_the_sum_of_operations",
        planted("DELETE FROM quota.spending WHERE kind = 'document'"),
    ),
    (
        "registry/only_unused_is_collected",
        unguarded(
            "registry.canonical_documents",
            "document_is_unreferenced_or_counted",
            "UPDATE registry.canonical_documents SET unreferenced_at = now()",
        ),
    ),
    (
        "registry/files_have_their_reference",
        planted(
            "SET session_replication_role = replica",
            "UPDATE registry.files SET content_hash = repeat('a', 64)"
            " WHERE file_id = (SELECT file_id FROM registry.files LIMIT 1)",
        ),
    ),
    (
        "worker/events_have_no_gap",
        planted(f"DELETE FROM worker.generation_events WHERE {of(READY)} AND sequence <> 3"),
    ),
]
