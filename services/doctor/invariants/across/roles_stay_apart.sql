-- A service's role reaches its own schema alone; the auditor and the dashboard write nowhere, and the dashboard sees
-- the Worker's schema alone.
-- If not: one broken service can break or read the others. REVOKE what is listed; deploy/postgres/roles.sql tells why.
WITH login AS (
    SELECT oid, rolname, split_part(rolname, '_', 2) AS own
    FROM pg_catalog.pg_roles
    WHERE rolname IN (
        'glossa_registry', 'glossa_cache', 'glossa_quota', 'glossa_quota_user', 'glossa_worker', 'glossa_auditor',
        'glossa_dashboard'
    )
), house AS (
    SELECT oid, nspname
    FROM pg_catalog.pg_namespace
    WHERE nspname IN ('registry', 'cache', 'quota', 'worker')
), may AS (
    SELECT login.rolname, login.own, house.nspname, house.nspname::text AS what, privilege.name AS privilege
    FROM login
    CROSS JOIN house
    CROSS JOIN (VALUES ('USAGE'), ('CREATE')) AS privilege (name)
    WHERE has_schema_privilege(login.oid, house.oid, privilege.name)
    UNION ALL
    SELECT login.rolname, login.own, house.nspname, house.nspname || '.' || thing.relname, privilege.name
    FROM login
    CROSS JOIN house
    INNER JOIN pg_catalog.pg_class AS thing ON thing.relnamespace = house.oid AND thing.relkind IN ('r', 'p', 'v', 'm')
    CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE'), ('TRUNCATE')) AS privilege (name)
    WHERE has_table_privilege(login.oid, thing.oid, privilege.name)
       OR (privilege.name IN ('SELECT', 'INSERT', 'UPDATE')
           AND has_any_column_privilege(login.oid, thing.oid, privilege.name))
)
SELECT rolname, what, privilege
FROM may
WHERE own <> nspname
  AND NOT (privilege IN ('USAGE', 'SELECT') AND (own = 'auditor' OR (own = 'dashboard' AND nspname = 'worker')))
UNION ALL
SELECT member.rolname, held.rolname, 'MEMBER'
FROM pg_catalog.pg_auth_members AS membership
INNER JOIN login AS member ON member.oid = membership.member
INNER JOIN pg_catalog.pg_roles AS held ON held.oid = membership.roleid
WHERE (member.rolname, held.rolname)
      NOT IN (('glossa_quota', 'glossa_quota_user'), ('glossa_auditor', 'pg_read_all_stats'))
UNION ALL
SELECT role.rolname, 'everything', 'SUPERUSER, CREATEROLE, CREATEDB, REPLICATION or BYPASSRLS'
FROM pg_catalog.pg_roles AS role
INNER JOIN login USING (oid)
WHERE role.rolsuper OR role.rolcreaterole OR role.rolcreatedb OR role.rolreplication OR role.rolbypassrls;
