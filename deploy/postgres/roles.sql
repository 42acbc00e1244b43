-- One login role and one schema for each service; nobody reaches into another's. One more role that only reads.
-- Run it in each database before the first start and before every upgrade (it may be repeated), by a role that may create roles:  psql "$DATABASE_URL" -f roles.sql
-- Repeating it changes nothing. Passwords are set apart:  ALTER ROLE glossa_cache PASSWORD '…';

DO $roles$
DECLARE
    service text;
    role    text;
    -- From PostgreSQL 16 on, being a member and acting as the role are different rights.
    acting  text := CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END;
    admin   text := current_user;
BEGIN
    -- Who looks whether everything is as it must be (`glossa doctor`): reads all four schemas, changes nothing.
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'glossa_auditor') THEN
        CREATE ROLE glossa_auditor LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
    END IF;
    ALTER ROLE glossa_auditor SET search_path = '';
    ALTER ROLE glossa_auditor SET default_transaction_read_only = 'on';
    -- A snapshot that is held for long makes every queue slow.
    ALTER ROLE glossa_auditor SET statement_timeout = '30s';
    ALTER ROLE glossa_auditor SET lock_timeout = '1s';
    ALTER ROLE glossa_auditor SET idle_in_transaction_session_timeout = '30s';
    IF NOT pg_catalog.pg_has_role('glossa_auditor', 'pg_read_all_stats', 'USAGE') THEN
        BEGIN
            GRANT pg_read_all_stats TO glossa_auditor;
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE NOTICE 'glossa_auditor cannot see how old transactions are: GRANT pg_read_all_stats TO glossa_auditor';
        END;
    END IF;

    FOREACH service IN ARRAY ARRAY['registry', 'cache', 'quota', 'worker'] LOOP
        role := 'glossa_' || service;

        -- Roles belong to the whole server, so another database may have made them already.
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = role) THEN
            EXECUTE format(
                'CREATE ROLE %I LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS', role);
        END IF;

        -- Making a schema for somebody needs the right to act as them, which superusers have anyway.
        IF NOT pg_catalog.pg_has_role(current_user, role, acting) THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', role);
        END IF;
        EXECUTE format('CREATE SCHEMA IF NOT EXISTS %I AUTHORIZATION %I', service, role);
        EXECUTE format('REVOKE ALL ON SCHEMA %I FROM PUBLIC', service);

        EXECUTE format('ALTER ROLE %I SET search_path = %I', role, service);
        -- One forgotten statement, lock or open transaction must not stop everybody else.
        EXECUTE format('ALTER ROLE %I SET statement_timeout = %L', role, '30s');
        EXECUTE format('ALTER ROLE %I SET lock_timeout = %L', role, '10s');
        EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = %L', role, '30s');

        -- The auditor reads what is there and what later migrations make. Granted by the owner itself.
        EXECUTE format('SET LOCAL ROLE %I', role);
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO glossa_auditor', service);
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO glossa_auditor', service);
        EXECUTE format('ALTER DEFAULT PRIVILEGES IN SCHEMA %I GRANT SELECT ON TABLES TO glossa_auditor', service);
        EXECUTE format('SET LOCAL ROLE %I', admin);
    END LOOP;

    -- What Quota becomes to read for one user: row-level security shows it that user's rows alone.
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'glossa_quota_user') THEN
        CREATE ROLE glossa_quota_user NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
    END IF;
    IF NOT pg_catalog.pg_has_role('glossa_quota', 'glossa_quota_user', acting) THEN
        GRANT glossa_quota_user TO glossa_quota;
    END IF;

    -- What the admin page reads the Worker's tables as: it writes nothing, sees no other schema, and what it asks ends
    -- soon, because one long snapshot slows every queue. The Worker's migrations say which tables it may read.
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'glossa_dashboard') THEN
        CREATE ROLE glossa_dashboard LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS;
    END IF;
    ALTER ROLE glossa_dashboard SET search_path = worker;
    ALTER ROLE glossa_dashboard SET default_transaction_read_only = on;
    ALTER ROLE glossa_dashboard SET statement_timeout = '2s';
    ALTER ROLE glossa_dashboard SET lock_timeout = '500ms';
    ALTER ROLE glossa_dashboard SET idle_in_transaction_session_timeout = '2s';

    -- Where PUBLIC may create things, a role could plant an object that others pick up by name.
    EXECUTE format('REVOKE CREATE, TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
    REVOKE ALL ON SCHEMA public FROM PUBLIC;
END
$roles$;
