-- Entries and operations are only ever added: not even Quota itself may change or delete one.
-- If not: history can be forged. REVOKE UPDATE, DELETE, TRUNCATE ON the table FROM the role.
SELECT role.rolname, kept.name AS table_name, privilege.name AS privilege
FROM pg_catalog.pg_roles AS role
CROSS JOIN (VALUES ('quota.ledger_entries'), ('quota.ai_operations')) AS kept (name)
CROSS JOIN (VALUES ('UPDATE'), ('DELETE'), ('TRUNCATE')) AS privilege (name)
WHERE role.rolname LIKE 'glossa\_%' AND has_table_privilege(role.oid, kept.name, privilege.name);
