-- A role for boxes with GPU workers: what they write is jobs and the fleet. It gets the tables below and no others, so a
-- new table is closed to it until it is named here. As a superuser, in the dispatcher's database, after each `migrate`:
--   psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -f deploy/least_rights/gpu_box.sql
--   psql "$DATABASE_URL" -c "\password dispatcher_gpu"
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'dispatcher_gpu') THEN
        CREATE ROLE dispatcher_gpu LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE CONNECTION LIMIT 200;
    END IF;
END $$;
BEGIN;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM dispatcher_gpu;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM dispatcher_gpu;
GRANT USAGE ON SCHEMA public TO dispatcher_gpu;
-- read only
GRANT SELECT ON artifacts_bytechange, django_migrations, gpus_fleetindex, gpus_pause, jobs_sweeprun, jobs_tenant TO dispatcher_gpu;
-- artifacts: inputs from URLs and outputs of runs; removal is the web's and the sweeps'
GRANT SELECT, INSERT, UPDATE ON artifacts_artifact, artifacts_artifactuse TO dispatcher_gpu;
GRANT SELECT, INSERT, UPDATE, DELETE ON artifacts_runupload TO dispatcher_gpu;
GRANT SELECT, INSERT ON artifacts_storefolder TO dispatcher_gpu;
-- jobs: submits are the web's
GRANT SELECT, UPDATE ON jobs_job, jobs_pushedresult TO dispatcher_gpu;
GRANT SELECT, INSERT, UPDATE ON jobs_attempt, jobs_tally TO dispatcher_gpu;
-- written once: the callbacks worker sends, the advancer reads notices, and retention deletes
GRANT SELECT, INSERT ON gpus_auditentry, gpus_configversion, jobs_callback, jobs_endnotice, jobs_event TO dispatcher_gpu;
-- a pinned worker registers its server and models, and every worker its process
GRANT SELECT, INSERT, UPDATE ON gpus_modelconfig, gpus_pool, gpus_quarantinedslot, gpus_server TO dispatcher_gpu;
GRANT SELECT, INSERT, UPDATE, DELETE ON gpus_placement, gpus_process, jobs_workersign TO dispatcher_gpu;
-- ids of the tables above that it inserts into
DO $$ DECLARE found record; BEGIN
    FOR found IN
        SELECT ids.oid::regclass AS name FROM pg_class ids
        JOIN pg_depend ON pg_depend.objid = ids.oid AND pg_depend.deptype IN ('a', 'i')
        JOIN pg_class tables ON tables.oid = pg_depend.refobjid
        WHERE ids.relkind = 'S' AND tables.relnamespace = 'public'::regnamespace
            AND has_table_privilege('dispatcher_gpu', tables.oid, 'INSERT')
    LOOP
        EXECUTE format('GRANT USAGE ON SEQUENCE %s TO dispatcher_gpu', found.name);
    END LOOP;
END $$;
COMMIT;
