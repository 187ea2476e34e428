-- A role for boxes with GPU workers: what they write is jobs and the fleet. No logins, sessions, API keys, tenants'
-- rules or schema. As the database's owner, after each `migrate` (new tables):
--   psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -f deploy/least_rights/gpu_box.sql
--   psql "$DATABASE_URL" -c "\password dispatcher_gpu"
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'dispatcher_gpu') THEN
        CREATE ROLE dispatcher_gpu LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE CONNECTION LIMIT 200;
    END IF;
END $$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO dispatcher_gpu;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO dispatcher_gpu;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO dispatcher_gpu;
-- logins, sessions and keys
REVOKE ALL ON auth_group, auth_group_permissions, auth_permission, auth_user, auth_user_groups,
    auth_user_user_permissions, django_admin_log, django_session, jobs_apikey, jobs_signinfailure,
    rest_framework_api_key_apikey FROM dispatcher_gpu;
-- read only
REVOKE INSERT, UPDATE, DELETE ON jobs_tenant, django_migrations, django_content_type FROM dispatcher_gpu;
-- written once
REVOKE UPDATE, DELETE ON gpus_auditentry FROM dispatcher_gpu;
