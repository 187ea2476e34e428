BEGIN TRANSACTION;
CREATE TABLE "auth_group" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(150) NOT NULL UNIQUE);
CREATE TABLE "auth_group_permissions" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED, "permission_id" integer NOT NULL REFERENCES "auth_permission" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "auth_permission" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "content_type_id" integer NOT NULL REFERENCES "django_content_type" ("id") DEFERRABLE INITIALLY DEFERRED, "codename" varchar(100) NOT NULL, "name" varchar(255) NOT NULL);
CREATE TABLE "auth_user" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "password" varchar(128) NOT NULL, "last_login" datetime NULL, "is_superuser" bool NOT NULL, "username" varchar(150) NOT NULL UNIQUE, "last_name" varchar(150) NOT NULL, "email" varchar(254) NOT NULL, "is_staff" bool NOT NULL, "is_active" bool NOT NULL, "date_joined" datetime NOT NULL, "first_name" varchar(150) NOT NULL);
CREATE TABLE "auth_user_groups" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "auth_user_user_permissions" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "permission_id" integer NOT NULL REFERENCES "auth_permission" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "django_admin_log" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "object_id" text NULL, "object_repr" varchar(200) NOT NULL, "action_flag" smallint unsigned NOT NULL CHECK ("action_flag" >= 0), "change_message" text NOT NULL, "content_type_id" integer NULL REFERENCES "django_content_type" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "action_time" datetime NOT NULL);
CREATE TABLE "django_content_type" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "app_label" varchar(100) NOT NULL, "model" varchar(100) NOT NULL);
INSERT INTO "django_content_type" VALUES(1,'jobs','job');
INSERT INTO "django_content_type" VALUES(2,'admin_ui','deadletter');
INSERT INTO "django_content_type" VALUES(3,'admin','logentry');
INSERT INTO "django_content_type" VALUES(4,'auth','permission');
INSERT INTO "django_content_type" VALUES(5,'auth','group');
INSERT INTO "django_content_type" VALUES(6,'auth','user');
INSERT INTO "django_content_type" VALUES(7,'contenttypes','contenttype');
INSERT INTO "django_content_type" VALUES(8,'sessions','session');
INSERT INTO "django_content_type" VALUES(9,'rest_framework_api_key','apikey');
INSERT INTO "django_content_type" VALUES(10,'gpus','pool');
INSERT INTO "django_content_type" VALUES(11,'gpus','modelconfig');
INSERT INTO "django_content_type" VALUES(12,'gpus','server');
INSERT INTO "django_content_type" VALUES(13,'gpus','quarantinedslot');
INSERT INTO "django_content_type" VALUES(14,'gpus','placement');
INSERT INTO "django_content_type" VALUES(15,'gpus','auditentry');
INSERT INTO "django_content_type" VALUES(16,'gpus','pause');
INSERT INTO "django_content_type" VALUES(17,'gpus','configversion');
INSERT INTO "django_content_type" VALUES(18,'gpus','fleetindex');
INSERT INTO "django_content_type" VALUES(19,'gpus','process');
INSERT INTO "django_content_type" VALUES(20,'jobs','callback');
INSERT INTO "django_content_type" VALUES(21,'jobs','pushedresult');
INSERT INTO "django_content_type" VALUES(22,'jobs','tenant');
INSERT INTO "django_content_type" VALUES(23,'jobs','callbacktry');
INSERT INTO "django_content_type" VALUES(24,'jobs','attempt');
INSERT INTO "django_content_type" VALUES(25,'jobs','jobtag');
INSERT INTO "django_content_type" VALUES(26,'jobs','purgeledger');
INSERT INTO "django_content_type" VALUES(27,'jobs','idempotencykey');
INSERT INTO "django_content_type" VALUES(28,'jobs','apikey');
INSERT INTO "django_content_type" VALUES(29,'jobs','event');
INSERT INTO "django_content_type" VALUES(30,'jobs','sweeprun');
INSERT INTO "django_content_type" VALUES(31,'jobs','rollup');
INSERT INTO "django_content_type" VALUES(32,'jobs','tally');
INSERT INTO "django_content_type" VALUES(33,'jobs','workersign');
INSERT INTO "django_content_type" VALUES(34,'jobs','receivercircuit');
INSERT INTO "django_content_type" VALUES(35,'jobs','signinfailure');
CREATE TABLE "django_migrations" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "app" varchar(255) NOT NULL, "name" varchar(255) NOT NULL, "applied" datetime NOT NULL);
INSERT INTO "django_migrations" VALUES(1,'contenttypes','0001_initial','2026-11-26 10:36:38.324609');
INSERT INTO "django_migrations" VALUES(2,'auth','0001_initial','2026-11-26 10:36:38.335029');
INSERT INTO "django_migrations" VALUES(3,'admin','0001_initial','2026-11-26 10:36:38.340614');
INSERT INTO "django_migrations" VALUES(4,'admin','0002_logentry_remove_auto_add','2026-11-26 10:36:38.347805');
INSERT INTO "django_migrations" VALUES(5,'admin','0003_logentry_add_action_flag_choices','2026-11-26 10:36:38.352619');
INSERT INTO "django_migrations" VALUES(6,'jobs','0001_initial','2026-11-26 10:36:38.551489');
INSERT INTO "django_migrations" VALUES(7,'admin_ui','0001_initial','2026-11-26 10:36:38.553034');
INSERT INTO "django_migrations" VALUES(8,'contenttypes','0002_remove_content_type_name','2026-11-26 10:36:38.578308');
INSERT INTO "django_migrations" VALUES(9,'auth','0002_alter_permission_name_max_length','2026-11-26 10:36:38.586373');
INSERT INTO "django_migrations" VALUES(10,'auth','0003_alter_user_email_max_length','2026-11-26 10:36:38.594073');
INSERT INTO "django_migrations" VALUES(11,'auth','0004_alter_user_username_opts','2026-11-26 10:36:38.599059');
INSERT INTO "django_migrations" VALUES(12,'auth','0005_alter_user_last_login_null','2026-11-26 10:36:38.606789');
INSERT INTO "django_migrations" VALUES(13,'auth','0006_require_contenttypes_0002','2026-11-26 10:36:38.607303');
INSERT INTO "django_migrations" VALUES(14,'auth','0007_alter_validators_add_error_messages','2026-11-26 10:36:38.613641');
INSERT INTO "django_migrations" VALUES(15,'auth','0008_alter_user_username_max_length','2026-11-26 10:36:38.625792');
INSERT INTO "django_migrations" VALUES(16,'auth','0009_alter_user_last_name_max_length','2026-11-26 10:36:38.633079');
INSERT INTO "django_migrations" VALUES(17,'auth','0010_alter_group_name_max_length','2026-11-26 10:36:38.640437');
INSERT INTO "django_migrations" VALUES(18,'auth','0011_update_proxy_permissions','2026-11-26 10:36:38.654742');
INSERT INTO "django_migrations" VALUES(19,'auth','0012_alter_user_first_name_max_length','2026-11-26 10:36:38.662386');
INSERT INTO "django_migrations" VALUES(20,'gpus','0001_initial','2026-11-26 10:36:38.682691');
INSERT INTO "django_migrations" VALUES(21,'gpus','0002_audit_pause_history','2026-11-26 10:36:38.694359');
INSERT INTO "django_migrations" VALUES(22,'gpus','0003_front_door','2026-11-26 10:36:38.704703');
INSERT INTO "django_migrations" VALUES(23,'gpus','0004_llm_kinds','2026-11-26 10:36:38.721201');
INSERT INTO "django_migrations" VALUES(24,'gpus','0005_server_machine','2026-11-26 10:36:38.730461');
INSERT INTO "django_migrations" VALUES(25,'gpus','0006_audit_append_only','2026-11-26 10:36:38.733490');
INSERT INTO "django_migrations" VALUES(26,'gpus','0007_follower_in_quarantine','2026-11-26 10:36:38.742077');
INSERT INTO "django_migrations" VALUES(27,'gpus','0008_health_of_plain_servers','2026-11-26 10:36:38.756240');
INSERT INTO "django_migrations" VALUES(28,'gpus','0009_longest_wait','2026-11-26 10:36:38.761235');
INSERT INTO "django_migrations" VALUES(29,'gpus','0010_one_layout_in_use','2026-11-26 10:36:38.764055');
INSERT INTO "django_migrations" VALUES(30,'gpus','0011_model_too_large_for_a_server','2026-11-26 10:36:38.782793');
INSERT INTO "django_migrations" VALUES(31,'gpus','0012_queues_of_a_process','2026-11-26 10:36:38.787456');
INSERT INTO "django_migrations" VALUES(32,'gpus','0013_quarantine_per_suspect','2026-11-26 10:36:38.794997');
INSERT INTO "django_migrations" VALUES(33,'gpus','0014_refused_url_longest_wait','2026-11-26 10:36:38.803231');
INSERT INTO "django_migrations" VALUES(34,'gpus','0015_shortest_run_limit','2026-11-26 10:36:38.808305');
INSERT INTO "django_migrations" VALUES(35,'gpus','0016_fleet_time','2026-11-26 10:36:38.812715');
INSERT INTO "django_migrations" VALUES(36,'jobs','0002_sweeprun','2026-11-26 10:36:38.814318');
INSERT INTO "django_migrations" VALUES(37,'jobs','0003_rollup','2026-11-26 10:36:38.823259');
INSERT INTO "django_migrations" VALUES(38,'jobs','0004_error_fingerprint','2026-11-26 10:36:38.938714');
INSERT INTO "django_migrations" VALUES(39,'jobs','0005_tally','2026-11-26 10:36:38.941082');
INSERT INTO "django_migrations" VALUES(40,'jobs','0006_unusual_rows','2026-11-26 10:36:38.974153');
INSERT INTO "django_migrations" VALUES(41,'jobs','0007_dead_letters_not_dismissed','2026-11-26 10:36:38.993451');
INSERT INTO "django_migrations" VALUES(42,'jobs','0008_front_door','2026-11-26 10:36:39.137340');
INSERT INTO "django_migrations" VALUES(43,'jobs','0009_tenant_bands_and_limits','2026-11-26 10:36:39.223011');
INSERT INTO "django_migrations" VALUES(44,'jobs','0010_run_news_and_usage','2026-11-26 10:36:39.235127');
INSERT INTO "django_migrations" VALUES(45,'jobs','0011_rare_events','2026-11-26 10:36:39.251049');
INSERT INTO "django_migrations" VALUES(46,'jobs','0012_longest_wait','2026-11-26 10:36:39.331536');
INSERT INTO "django_migrations" VALUES(47,'jobs','0013_cancel_requests_worker_signs','2026-11-26 10:36:39.344250');
INSERT INTO "django_migrations" VALUES(48,'jobs','0014_callback_queues','2026-11-26 10:36:39.426220');
INSERT INTO "django_migrations" VALUES(49,'jobs','0015_refusals_folded','2026-11-26 10:36:39.450580');
INSERT INTO "django_migrations" VALUES(50,'jobs','0016_pushes_per_attempt','2026-11-26 10:36:39.462484');
INSERT INTO "django_migrations" VALUES(51,'jobs','0017_sign_in_failures','2026-11-26 10:36:39.465206');
INSERT INTO "django_migrations" VALUES(52,'jobs','0018_tenant_max_queued_default','2026-11-26 10:36:39.474055');
INSERT INTO "django_migrations" VALUES(53,'rest_framework_api_key','0001_initial','2026-11-26 10:36:39.476572');
INSERT INTO "django_migrations" VALUES(54,'rest_framework_api_key','0002_auto_20190529_2243','2026-11-26 10:36:39.482218');
INSERT INTO "django_migrations" VALUES(55,'rest_framework_api_key','0003_auto_20190623_1952','2026-11-26 10:36:39.484266');
INSERT INTO "django_migrations" VALUES(56,'rest_framework_api_key','0004_prefix_hashed_key','2026-11-26 10:36:39.534700');
INSERT INTO "django_migrations" VALUES(57,'rest_framework_api_key','0005_auto_20220110_1102','2026-11-26 10:36:39.548429');
INSERT INTO "django_migrations" VALUES(58,'sessions','0001_initial','2026-11-26 10:36:39.550674');
CREATE TABLE "django_session" ("session_key" varchar(40) NOT NULL PRIMARY KEY, "session_data" text NOT NULL, "expire_date" datetime NOT NULL);
CREATE TABLE "gpus_auditentry" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "at" datetime NOT NULL, "actor" varchar(200) NOT NULL, "action" varchar(60) NOT NULL, "target" varchar(200) NOT NULL, "detail" text NOT NULL CHECK ((JSON_VALID("detail") OR "detail" IS NULL)));
INSERT INTO "gpus_auditentry" VALUES(1,'2026-11-26 10:36:40.102645','cli:root','register_server','server:zimg-server-1','{"model": "zimg", "endpoint": "http://127.0.0.1:9001/zimg/generate", "slots": 4, "model_fields": ["model_type", "poll_endpoint_template", "id_field", "poll_interval", "max_poll_time", "max_retries", "max_run_seconds", "min_run_seconds", "at_most_once", "payload_schema", "cancel_endpoint_template", "max_response_bytes", "max_queued", "max_queued_seconds", "remote_model", "keep_alive_seconds", "health_path", "queue_algorithm", "affinity_patience_seconds"]}');
INSERT INTO "gpus_auditentry" VALUES(2,'2026-11-26 10:36:40.150783','cli:root','register_server','server:flux-server-1','{"model": "flux", "endpoint": "http://127.0.0.1:9002/flux/generate", "slots": 2, "model_fields": ["model_type", "poll_endpoint_template", "id_field", "poll_interval", "max_poll_time", "max_retries", "max_run_seconds", "min_run_seconds", "at_most_once", "payload_schema", "cancel_endpoint_template", "max_response_bytes", "max_queued", "max_queued_seconds", "remote_model", "keep_alive_seconds", "health_path", "queue_algorithm", "affinity_patience_seconds"]}');
INSERT INTO "gpus_auditentry" VALUES(3,'2026-11-26 10:36:40.161098','cli:root','register_server','server:trellis-server-1','{"model": "trellis", "endpoint": "http://127.0.0.1:9003/trellis/generate", "slots": 2, "model_fields": ["model_type", "poll_endpoint_template", "id_field", "poll_interval", "max_poll_time", "max_retries", "max_run_seconds", "min_run_seconds", "at_most_once", "payload_schema", "cancel_endpoint_template", "max_response_bytes", "max_queued", "max_queued_seconds", "remote_model", "keep_alive_seconds", "health_path", "queue_algorithm", "affinity_patience_seconds"]}');
INSERT INTO "gpus_auditentry" VALUES(4,'2026-11-26 10:36:40.171685','cli:root','register_server','server:ltx2-server-1','{"model": "ltx2", "endpoint": "http://127.0.0.1:9004/ltx2/generate", "slots": 2, "model_fields": ["model_type", "poll_endpoint_template", "id_field", "poll_interval", "max_poll_time", "max_retries", "max_run_seconds", "min_run_seconds", "at_most_once", "payload_schema", "cancel_endpoint_template", "max_response_bytes", "max_queued", "max_queued_seconds", "remote_model", "keep_alive_seconds", "health_path", "queue_algorithm", "affinity_patience_seconds"]}');
CREATE TABLE "gpus_configversion" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "number" integer unsigned NOT NULL CHECK ("number" >= 0), "at" datetime NOT NULL, "actor" varchar(200) NOT NULL, "fields" text NOT NULL CHECK ((JSON_VALID("fields") OR "fields" IS NULL)), "model_id" varchar(64) NOT NULL REFERENCES "gpus_modelconfig" ("name") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_version_per_number" UNIQUE ("model_id", "number"));
INSERT INTO "gpus_configversion" VALUES(1,1,'2026-11-26 10:36:40.095963','cli:root','{"model_type": "sync", "poll_endpoint_template": null, "id_field": null, "poll_interval": 2.0, "max_poll_time": 600.0, "max_retries": 50, "max_run_seconds": 120.0, "min_run_seconds": null, "at_most_once": false, "payload_schema": null, "cancel_endpoint_template": "/cancel/{job_id}", "max_response_bytes": 16777216, "max_queued": null, "max_queued_seconds": null, "remote_model": null, "keep_alive_seconds": null, "health_path": null, "queue_algorithm": "fair", "affinity_patience_seconds": 30.0}','zimg');
INSERT INTO "gpus_configversion" VALUES(2,1,'2026-11-26 10:36:40.146513','cli:root','{"model_type": "async", "poll_endpoint_template": "/status/{id}", "id_field": "job_id", "poll_interval": 0.5, "max_poll_time": 600.0, "max_retries": 50, "max_run_seconds": 120.0, "min_run_seconds": null, "at_most_once": false, "payload_schema": null, "cancel_endpoint_template": "/cancel/{job_id}", "max_response_bytes": 16777216, "max_queued": null, "max_queued_seconds": null, "remote_model": null, "keep_alive_seconds": null, "health_path": null, "queue_algorithm": "fair", "affinity_patience_seconds": 30.0}','flux');
INSERT INTO "gpus_configversion" VALUES(3,1,'2026-11-26 10:36:40.156504','cli:root','{"model_type": "async", "poll_endpoint_template": "/status/{id}", "id_field": "job_id", "poll_interval": 0.5, "max_poll_time": 600.0, "max_retries": 50, "max_run_seconds": 120.0, "min_run_seconds": null, "at_most_once": false, "payload_schema": null, "cancel_endpoint_template": "/cancel/{job_id}", "max_response_bytes": 16777216, "max_queued": null, "max_queued_seconds": null, "remote_model": null, "keep_alive_seconds": null, "health_path": null, "queue_algorithm": "fair", "affinity_patience_seconds": 30.0}','trellis');
INSERT INTO "gpus_configversion" VALUES(4,1,'2026-11-26 10:36:40.167192','cli:root','{"model_type": "async", "poll_endpoint_template": "/status/{id}", "id_field": "job_id", "poll_interval": 0.5, "max_poll_time": 600.0, "max_retries": 50, "max_run_seconds": 120.0, "min_run_seconds": null, "at_most_once": false, "payload_schema": null, "cancel_endpoint_template": "/cancel/{job_id}", "max_response_bytes": 16777216, "max_queued": null, "max_queued_seconds": null, "remote_model": null, "keep_alive_seconds": null, "health_path": null, "queue_algorithm": "fair", "affinity_patience_seconds": 30.0}','ltx2');
CREATE TABLE "gpus_fleetindex" ("fleet" varchar(64) NOT NULL PRIMARY KEY, "layout" smallint unsigned DEFAULT 6 NOT NULL CHECK ("layout" >= 0), "next_layout" smallint unsigned NULL CHECK ("next_layout" >= 0), "switch" varchar(32) DEFAULT '' NOT NULL, "changed_at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NULL, "time_us" bigint NULL, "time_seen_at" datetime NULL);
CREATE TABLE "gpus_modelconfig" ("name" varchar(64) NOT NULL PRIMARY KEY, "model_type" varchar(8) NOT NULL, "poll_endpoint_template" varchar(500) NULL, "id_field" varchar(100) NULL, "poll_interval" real NOT NULL, "max_poll_time" real NOT NULL, "max_retries" integer unsigned NOT NULL CHECK ("max_retries" >= 0), "max_run_seconds" real NULL, "at_most_once" bool NOT NULL, "payload_schema" text NULL CHECK ((JSON_VALID("payload_schema") OR "payload_schema" IS NULL)), "cancel_endpoint_template" varchar(500) NULL, "max_response_bytes" integer unsigned NOT NULL CHECK ("max_response_bytes" >= 0), "created_at" datetime NOT NULL, "updated_at" datetime NOT NULL, "pool_id" varchar(64) NOT NULL REFERENCES "gpus_pool" ("name") DEFERRABLE INITIALLY DEFERRED, "max_queued" integer unsigned NULL CHECK ("max_queued" >= 0), "keep_alive_seconds" real NULL, "remote_model" varchar(200) NULL, "health_path" varchar(200) NULL, "max_queued_seconds" real NULL, "min_run_seconds" real NULL);
INSERT INTO "gpus_modelconfig" VALUES('zimg','sync',NULL,NULL,2.0,600.0,50,120.0,0,NULL,'/cancel/{job_id}',16777216,'2026-11-26 10:36:40.092572','2026-11-26 10:36:40.094561','zimg',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "gpus_modelconfig" VALUES('flux','async','/status/{id}','job_id',0.5,600.0,50,120.0,0,NULL,'/cancel/{job_id}',16777216,'2026-11-26 10:36:40.143557','2026-11-26 10:36:40.145437','flux',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "gpus_modelconfig" VALUES('trellis','async','/status/{id}','job_id',0.5,600.0,50,120.0,0,NULL,'/cancel/{job_id}',16777216,'2026-11-26 10:36:40.154126','2026-11-26 10:36:40.155564','trellis',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "gpus_modelconfig" VALUES('ltx2','async','/status/{id}','job_id',0.5,600.0,50,120.0,0,NULL,'/cancel/{job_id}',16777216,'2026-11-26 10:36:40.164641','2026-11-26 10:36:40.166243','ltx2',NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE "gpus_pause" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "kind" varchar(8) NOT NULL, "name" varchar(64) NOT NULL, "since" datetime NOT NULL, "actor" varchar(200) NOT NULL, "reason" varchar(500) NOT NULL, CONSTRAINT "one_pause_each" UNIQUE ("kind", "name"));
CREATE TABLE "gpus_placement" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "endpoint" varchar(500) NOT NULL, "model_id" varchar(64) NOT NULL REFERENCES "gpus_modelconfig" ("name") DEFERRABLE INITIALLY DEFERRED, "server_id" varchar(64) NOT NULL REFERENCES "gpus_server" ("name") DEFERRABLE INITIALLY DEFERRED, "too_large" varchar(500) DEFAULT '' NOT NULL, "too_large_boot" varchar(100) DEFAULT '' NOT NULL, CONSTRAINT "one_placement_per_server_and_model" UNIQUE ("server_id", "model_id"));
INSERT INTO "gpus_placement" VALUES(1,'http://127.0.0.1:9001/zimg/generate','zimg','zimg-server-1','','');
INSERT INTO "gpus_placement" VALUES(2,'http://127.0.0.1:9002/flux/generate','flux','flux-server-1','','');
INSERT INTO "gpus_placement" VALUES(3,'http://127.0.0.1:9003/trellis/generate','trellis','trellis-server-1','','');
INSERT INTO "gpus_placement" VALUES(4,'http://127.0.0.1:9004/ltx2/generate','ltx2','ltx2-server-1','','');
CREATE TABLE "gpus_pool" ("name" varchar(64) NOT NULL PRIMARY KEY, "fleet" varchar(64) NOT NULL, "algorithm" varchar(8) NOT NULL, "affinity_patience_seconds" real NOT NULL, "created_at" datetime NOT NULL);
INSERT INTO "gpus_pool" VALUES('zimg','main','fair',30.0,'2026-11-26 10:36:40.090584');
INSERT INTO "gpus_pool" VALUES('flux','main','fair',30.0,'2026-11-26 10:36:40.142087');
INSERT INTO "gpus_pool" VALUES('trellis','main','fair',30.0,'2026-11-26 10:36:40.153308');
INSERT INTO "gpus_pool" VALUES('ltx2','main','fair',30.0,'2026-11-26 10:36:40.163681');
CREATE TABLE "gpus_process" ("name" varchar(200) NOT NULL PRIMARY KEY, "kind" varchar(10) NOT NULL, "layout" smallint unsigned NOT NULL CHECK ("layout" >= 0), "started_at" datetime NOT NULL, "beat_at" datetime NOT NULL, "ready" text NOT NULL CHECK ((JSON_VALID("ready") OR "ready" IS NULL)), "queues" text DEFAULT '' NOT NULL);
INSERT INTO "gpus_process" VALUES('vm:32691:R5PFJ8','gpu',6,'2026-11-26 10:36:42.781','2026-11-26 10:40:38.681','{}','gpu.flux
gpu.ltx2
gpu.trellis
gpu.zimg');
INSERT INTO "gpus_process" VALUES('vm:32692:K7NE14','sweeps',6,'2026-11-26 10:36:42.861','2026-11-26 10:40:38.816','{}','sweeps');
INSERT INTO "gpus_process" VALUES('vm:32693:WZGMFR','callbacks',6,'2026-11-26 10:36:43.045','2026-11-26 10:40:39.120','{}','callbacks');
INSERT INTO "gpus_process" VALUES('vm:32695:VASWM8','web',6,'2026-11-26 10:36:44.483','2026-11-26 10:40:40.359','{}','');
CREATE TABLE "gpus_quarantinedslot" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "slot" integer unsigned NOT NULL CHECK ("slot" >= 0), "attempt_id" varchar(26) NOT NULL, "job_id" varchar(26) NOT NULL, "model" varchar(64) NOT NULL, "reason" varchar(200) NOT NULL, "boot_id" varchar(100) NOT NULL, "since" datetime NOT NULL, "until" datetime NOT NULL, "probed_at" datetime NULL, "freed_at" datetime NULL, "evidence" varchar(200) NOT NULL, "server_id" varchar(64) NOT NULL REFERENCES "gpus_server" ("name") DEFERRABLE INITIALLY DEFERRED, "follower_attempt_id" varchar(26) DEFAULT '' NOT NULL, "refused_at" datetime NULL, "refused_url" text NULL);
CREATE TABLE "gpus_server" ("name" varchar(64) NOT NULL PRIMARY KEY, "slots" integer unsigned NOT NULL CHECK ("slots" >= 0), "desired" varchar(8) NOT NULL, "host" varchar(200) NULL, "headers_encrypted" text NOT NULL, "ca_pem" text NOT NULL, "boot_id" varchar(100) NOT NULL, "healthy" bool NULL, "checked_at" datetime NULL, "last_error" varchar(500) NOT NULL, "created_at" datetime NOT NULL, "updated_at" datetime NOT NULL, "pool_id" varchar(64) NOT NULL REFERENCES "gpus_pool" ("name") DEFERRABLE INITIALLY DEFERRED, "machine" varchar(64) NULL, "tells_health" bool NULL);
INSERT INTO "gpus_server" VALUES('zimg-server-1',4,'on',NULL,'gAAAAABrCAu4OXob7mKcDoU_h0nPH5z3-3-yeKJlY2fDyiasW0bKPUWqLRliFmy1yT01YjDGm-NIFcbBVfVgP0vQ28YcIMJ94fE8KyBxKSVCH1mepLJzTqKqHy1XTjWM2FFE-4IqoKyxswF6UGgatuSX8eCV7wmhFA==','','5eb3a953fe3d41adb9408dd099ce9e7f',1,'2026-11-26 10:40:15.216950','','2026-11-26 10:36:40.100385','2026-11-26 10:36:40.100407','zimg',NULL,1);
INSERT INTO "gpus_server" VALUES('flux-server-1',2,'on',NULL,'gAAAAABrCAu42hVs5cJCiXZQCOC-cE09Tdf6qMoeCMLkBVgvbVW1SoSUfUCZpeTAMBa19AUjDdBjp7YDZdplls-xTAiNAW_CY80xheH3eMb7_UgoI7NkeR43TOw5idvWLY0pnCDmkSI8ZDU1JOyj4vuplYdgkAy-_A==','','d1d140fecf8e4e4088ab0debbe3e012c',1,'2026-11-26 10:40:15.216950','','2026-11-26 10:36:40.149200','2026-11-26 10:36:40.149217','flux',NULL,1);
INSERT INTO "gpus_server" VALUES('trellis-server-1',2,'on',NULL,'gAAAAABrCAu4_grufu21FenYN0uTLUo_YJXrPxdy37UUzaQCV3xZ-PqBaDT2z1BRAAD0i3yB5ZHsZ9swlgT_bSYiH56Sb23QEuv6kHL3rtSsZP4-sd-ntk0cXflW1FASBJE5NQ0N0qFv2I7bTuM9zlvM1FgD2A4WOA==','','10f356eb94d940fba468d0a602850af3',1,'2026-11-26 10:40:15.216950','','2026-11-26 10:36:40.159314','2026-11-26 10:36:40.159332','trellis',NULL,1);
INSERT INTO "gpus_server" VALUES('ltx2-server-1',2,'on',NULL,'gAAAAABrCAu4bi-JG7OuVAKKt-ZyaiqdPvu7p7y1a4TsniXOTse7sGH8bpGXSFrDqz0K_xKPSOog-RnHLjuOdHopPu557dg2EzE9zvpxnWxkXP6uj_ZJwCd5luRpsKCLUGou7WsFHDy3XwQn3Aew0mgN9PSZRWxV2w==','','b97d727a8e074ee7b7c9ac787343010c',1,'2026-11-26 10:40:15.216950','','2026-11-26 10:36:40.169853','2026-11-26 10:36:40.169872','ltx2',NULL,1);
CREATE TABLE "jobs_apikey" ("id" varchar(150) NOT NULL PRIMARY KEY, "prefix" varchar(8) NOT NULL UNIQUE, "hashed_key" varchar(150) NOT NULL, "created" datetime NOT NULL, "name" varchar(50) NOT NULL, "revoked" bool NOT NULL, "expiry_date" datetime NULL, "kind" varchar(8) NOT NULL, "tenant_id" bigint NOT NULL REFERENCES "jobs_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, "allowed_models" text NULL CHECK ((JSON_VALID("allowed_models") OR "allowed_models" IS NULL)), "last_used_at" datetime NULL, "rotated_to_id" varchar(150) NULL REFERENCES "jobs_apikey" ("id") DEFERRABLE INITIALLY DEFERRED, "scopes" text NULL CHECK ((JSON_VALID("scopes") OR "scopes" IS NULL)));
CREATE TABLE "jobs_attempt" ("id" varchar(26) NOT NULL PRIMARY KEY, "number" integer unsigned NOT NULL CHECK ("number" >= 0), "round" integer unsigned NOT NULL CHECK ("round" >= 0), "epoch" integer unsigned NOT NULL CHECK ("epoch" >= 0), "state" varchar(10) NOT NULL, "server" varchar(64) NOT NULL, "slot" integer unsigned NOT NULL CHECK ("slot" >= 0), "model" varchar(64) NOT NULL, "worker" varchar(200) NOT NULL, "remote_id" varchar(500) NOT NULL, "error_code" varchar(64) NOT NULL, "error_message" text NOT NULL, "counted" bool NOT NULL, "slot_freed" bool NOT NULL, "evidence" varchar(200) NOT NULL, "started_at" datetime NOT NULL, "finished_at" datetime NULL, "gpu_seconds" real NULL, "job_id" varchar(26) NOT NULL REFERENCES "jobs_job" ("id") DEFERRABLE INITIALLY DEFERRED, "usage" text NULL CHECK ((JSON_VALID("usage") OR "usage" IS NULL)), CONSTRAINT "attempts_are_numbered" UNIQUE ("job_id", "number"));
INSERT INTO "jobs_attempt" VALUES('01M8BQ1XPK2MGYMD90QR9BM6EA',1,1,1,'completed','zimg-server-1',2,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:08.988822','2026-11-26 10:40:09.231301',2.3487442700002247875e-01,'01M8BQ1XPN9AZ61JZWPPP3Y238',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ1XQ53SJ8WCED97SVPZE3',1,1,1,'completed','zimg-server-1',1,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:08.990550','2026-11-26 10:40:09.230570',2.39808971000002202345e-01,'01M8BQ1XP959N8ZXARVEFAGCKG',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ1XP66PXCBAP74B42EKB0',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:09.020382','2026-11-26 10:40:09.235429',2.14850877999879230628e-01,'01M8BQ1XMA3862Z0W5HHSPCDZW',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ1XQQBQWB8HTVAD0RS26A',1,1,1,'completed','zimg-server-1',3,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:09.025044','2026-11-26 10:40:09.235074',0.209869579000042,'01M8BQ1XQ16JHF2KS34VEXTVMA',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ1Y0F0Y1WWB6614QYH9FV',1,1,1,'failed','zimg-server-1',2,'zimg','vm:32691:R5PFJ8','','run_failed','RuntimeError: the simulated model failed

Traceback (most recent call last):
  File "gpus/node/work.py", line 33, in _handle
    result = run.order.handler.handle(run.order.payload, run.context)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/handlers/code.py", line 54, in run
    return self._run(payload, ctx) if _takes_context(self._run) else self._run(payload)
           ^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/node/simulator.py", line 55, in run
    raise RuntimeError("the simulated model failed")
RuntimeError: the simulated model failed
',1,1,'','2026-11-26 10:40:09.233759','2026-11-26 10:40:09.336801',1.02740068000002793269e-01,'01M8BQ1XR4DBFDVPT5XHBXVPV4',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ1Y0E1C9ZE1V2APWG2FQG',1,1,1,'failed','zimg-server-1',1,'zimg','vm:32691:R5PFJ8','','run_failed','RuntimeError: the simulated model failed

Traceback (most recent call last):
  File "gpus/node/work.py", line 33, in _handle
    result = run.order.handler.handle(run.order.payload, run.context)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/handlers/code.py", line 54, in run
    return self._run(payload, ctx) if _takes_context(self._run) else self._run(payload)
           ^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/node/simulator.py", line 55, in run
    raise RuntimeError("the simulated model failed")
RuntimeError: the simulated model failed
',1,1,'','2026-11-26 10:40:09.238013','2026-11-26 10:40:09.343125',1.04911828000012974371e-01,'01M8BQ1XQHD09AC12JNHN5EQNX',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ22R0234BFASE7CRA39TC',1,1,1,'completed','zimg-server-1',3,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:14.083849','2026-11-26 10:40:14.188461',1.04397769999877709778e-01,'01M8BQ22QPB0QQDDCKMM3MHG6M',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ22R79S79MV1HKXRDWP49',1,1,1,'failed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','run_failed','RuntimeError: the simulated model failed

Traceback (most recent call last):
  File "gpus/node/work.py", line 33, in _handle
    result = run.order.handler.handle(run.order.payload, run.context)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/handlers/code.py", line 54, in run
    return self._run(payload, ctx) if _takes_context(self._run) else self._run(payload)
           ^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/node/simulator.py", line 55, in run
    raise RuntimeError("the simulated model failed")
RuntimeError: the simulated model failed
',1,1,'','2026-11-26 10:40:14.088903','2026-11-26 10:40:14.191851',1.0276614400004291383e-01,'01M8BQ22R006A0P42MHKPC3VKQ',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ24VA07Z43NFDSQRX8FCR',2,1,1,'failed','zimg-server-1',2,'zimg','vm:32691:R5PFJ8','','run_failed','RuntimeError: the simulated model failed

Traceback (most recent call last):
  File "gpus/node/work.py", line 33, in _handle
    result = run.order.handler.handle(run.order.payload, run.context)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/handlers/code.py", line 54, in run
    return self._run(payload, ctx) if _takes_context(self._run) else self._run(payload)
           ^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/node/simulator.py", line 55, in run
    raise RuntimeError("the simulated model failed")
RuntimeError: the simulated model failed
',1,1,'','2026-11-26 10:40:16.240859','2026-11-26 10:40:16.343966',1.02890052000020659761e-01,'01M8BQ22R006A0P42MHKPC3VKQ',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ25PC8SKMTN228BNQ5KEF',1,1,1,'sent','zimg-server-1',1,'zimg','vm:32691:R5PFJ8','','','',0,0,'','2026-11-26 10:40:17.102035',NULL,NULL,'01M8BQ25P45F64TCFPR69YARK3',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ25PNBH4YA0ZJ0V31Z6E9',1,1,1,'completed','zimg-server-1',3,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:17.111241','2026-11-26 10:40:37.228232',2.01168429319998267592e+01,'01M8BQ25PD66WW6J6HKMJ1BM02',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ25PY2TZKAJXKF0NWHM6G',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:17.119401','2026-11-26 10:40:37.229163',2.01095848600000408627e+01,'01M8BQ25PN5EXZBVDR80XBVW62',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ25Q87TF1RP5A2D4RMB2V',1,1,1,'completed','zimg-server-1',2,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:17.128868','2026-11-26 10:40:37.242088',2.01130380250001508093e+01,'01M8BQ25PX3F1KKEF6ZP8E8TYB',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ25QKCJZ98DQDK2WDWCGG',1,1,1,'completed','trellis-server-1',0,'trellis','vm:32691:R5PFJ8','ba541fa6dd834075ba0464d257130880','','',0,1,'result pushed','2026-11-26 10:40:17.143647','2026-11-26 10:40:37.337149',2.01933589969999047761e+01,'01M8BQ25QBA7YJX6VW48KFYE6T',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ25QV6GZ5FBZ3X3CGPQAT',1,1,1,'completed','trellis-server-1',1,'trellis','vm:32691:R5PFJ8','8968b20648ba45e8b1a08a348276d8fc','','',0,1,'','2026-11-26 10:40:17.147891','2026-11-26 10:40:37.279297',2.01312012450000565877e+01,'01M8BQ25QMEKYA81RCBF1MM0C1',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2SCY9P93E7787DY39TPY',3,1,1,'failed','zimg-server-1',3,'zimg','vm:32691:R5PFJ8','','run_failed','RuntimeError: the simulated model failed

Traceback (most recent call last):
  File "gpus/node/work.py", line 33, in _handle
    result = run.order.handler.handle(run.order.payload, run.context)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/handlers/code.py", line 54, in run
    return self._run(payload, ctx) if _takes_context(self._run) else self._run(payload)
           ^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/node/simulator.py", line 55, in run
    raise RuntimeError("the simulated model failed")
RuntimeError: the simulated model failed
',1,1,'','2026-11-26 10:40:37.298718','2026-11-26 10:40:37.428375',1.29457208000076207099e-01,'01M8BQ22R006A0P42MHKPC3VKQ',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2TW129GQVCP9KCABB1JR',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:38.793714','2026-11-26 10:40:38.913342',1.19433568999966155388e-01,'01M8BQ2TT4C2J16QEJ3T2K1GRT',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2TWDAV4QSA0C9TFX32QW',1,1,1,'sent','zimg-server-1',2,'zimg','vm:32691:R5PFJ8','','','',0,0,'','2026-11-26 10:40:38.797663',NULL,NULL,'01M8BQ2TVY9QN0X2SNAY3KDK7M',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2TWT1MRDF64MMQV7Q2E9',1,1,1,'sent','zimg-server-1',3,'zimg','vm:32691:R5PFJ8','','','',0,0,'','2026-11-26 10:40:38.815219',NULL,NULL,'01M8BQ2TWJAR592ESWRV8T042E',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2TXVA78HM7GSVMVQV4YD',1,1,1,'waiting','trellis-server-1',1,'trellis','vm:32691:R5PFJ8','5f4134dc1f5f4cbcb7911805ff4972af','','',0,0,'','2026-11-26 10:40:38.848129',NULL,NULL,'01M8BQ2TXJ0R425MNFVREPHSDV',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2TY6APTJVA7CT8FV9RK5',1,1,1,'waiting','trellis-server-1',0,'trellis','vm:32691:R5PFJ8','5e2c6a1194c94ccdb23d42ad9956dcc5','','',0,0,'','2026-11-26 10:40:38.857768',NULL,NULL,'01M8BQ2TXX1EDV5S9HCBS0GZ7K',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2V015ZXRBGZCKJA7SSGR',1,1,1,'failed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','run_failed','RuntimeError: the simulated model failed

Traceback (most recent call last):
  File "gpus/node/work.py", line 33, in _handle
    result = run.order.handler.handle(run.order.payload, run.context)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/handlers/code.py", line 54, in run
    return self._run(payload, ctx) if _takes_context(self._run) else self._run(payload)
           ^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/node/simulator.py", line 55, in run
    raise RuntimeError("the simulated model failed")
RuntimeError: the simulated model failed
',1,1,'','2026-11-26 10:40:38.914397','2026-11-26 10:40:39.030751',1.16164297000068472698e-01,'01M8BQ2TX9FA0YTWF11CB0C2KW',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2V3P9QD5MNZC39G6149R',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:39.032434','2026-11-26 10:40:39.152365',1.14610432999825206934e-01,'01M8BQ2TYV287EPJBDMDW6RPXJ',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2V7G8TR9D5SFKZCKC7YS',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:39.161054','2026-11-26 10:40:39.308318',1.46949992999907408375e-01,'01M8BQ2TZ26060F587RPQXB3ZF',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2VCC693K84M549E7EJQG',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:39.344411','2026-11-26 10:40:39.473213',1.28590460999930655816e-01,'01M8BQ2TZ7DZ2V8DZA2MYKS5VS',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2VHH586Y5CMNCHD39NR6',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:39.556381','2026-11-26 10:40:39.662564',1.05765053000141051597e-01,'01M8BQ2TZDCPTKFVT6V71051KY',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2VQV8G22NXEYN005J96Z',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:39.741610','2026-11-26 10:40:39.855628',1.1373491799986368278e-01,'01M8BQ2TZK3Y0P5FQQ3KR6EF8W',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2VXF3X3ZZWSZ758Z3BF9',1,1,1,'completed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','','',0,1,'','2026-11-26 10:40:39.976189','2026-11-26 10:40:40.081130',1.04694909000045299762e-01,'01M8BQ2TZQ18V2QQS7HSGSZY9R',NULL);
INSERT INTO "jobs_attempt" VALUES('01M8BQ2W8P239KGGRX5JVHD8ES',2,1,1,'failed','zimg-server-1',0,'zimg','vm:32691:R5PFJ8','','run_failed','RuntimeError: the simulated model failed

Traceback (most recent call last):
  File "gpus/node/work.py", line 33, in _handle
    result = run.order.handler.handle(run.order.payload, run.context)
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/handlers/code.py", line 54, in run
    return self._run(payload, ctx) if _takes_context(self._run) else self._run(payload)
           ^^^^^^^^^^^^^^^^^^^^^^^
  File "gpus/node/simulator.py", line 55, in run
    raise RuntimeError("the simulated model failed")
RuntimeError: the simulated model failed
',1,1,'','2026-11-26 10:40:40.216351','2026-11-26 10:40:40.321172',1.04625406999957704101e-01,'01M8BQ2TX9FA0YTWF11CB0C2KW',NULL);
CREATE TABLE "jobs_callback" ("id" varchar(40) NOT NULL PRIMARY KEY, "round" integer unsigned NOT NULL CHECK ("round" >= 0), "url" varchar(2000) NOT NULL, "body" text NOT NULL, "state" varchar(10) NOT NULL, "tries" integer unsigned NOT NULL CHECK ("tries" >= 0), "next_at" datetime NULL, "created_at" datetime NOT NULL, "delivered_at" datetime NULL, "job_id" varchar(26) NOT NULL REFERENCES "jobs_job" ("id") DEFERRABLE INITIALLY DEFERRED, "tenant_id" bigint NULL, "receiver" varchar(300) NULL, "sending_until" datetime NULL, CONSTRAINT "one_callback_per_round" UNIQUE ("job_id", "round"));
INSERT INTO "jobs_callback" VALUES('msg_01M8BQ22VC37T8DWX522461Y07',1,'http://127.0.0.1:9/nobody','{"finished_at":"2026-11-26T10:40:14.188461+00:00","job_id":"01M8BQ22QPB0QQDDCKMM3MHG6M","metadata":{},"model":"zimg","result":{"echo":null,"model":"zimg","seconds":0.1},"status":"completed","tags":[]}','pending',2,'2026-11-26 10:45:38.106234','2026-11-26 10:40:14.188461',NULL,'01M8BQ22QPB0QQDDCKMM3MHG6M',2,'127.0.0.1:9',NULL);
INSERT INTO "jobs_callback" VALUES('msg_01M8BQ2V015ZXRBGZCKJA7T416',1,'http://127.0.0.1:9/nobody','{"finished_at":"2026-11-26T10:40:38.913342+00:00","job_id":"01M8BQ2TT4C2J16QEJ3T2K1GRT","metadata":{},"model":"zimg","result":{"echo":null,"model":"zimg","seconds":0.1},"status":"completed","tags":[]}','pending',1,'2026-11-26 10:40:43.658734','2026-11-26 10:40:38.913342',NULL,'01M8BQ2TT4C2J16QEJ3T2K1GRT',2,'127.0.0.1:9',NULL);
CREATE TABLE "jobs_callbacktry" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "number" integer unsigned NOT NULL CHECK ("number" >= 0), "at" datetime NOT NULL, "status_code" integer unsigned NULL CHECK ("status_code" >= 0), "error" varchar(500) NOT NULL, "duration_ms" integer unsigned NOT NULL CHECK ("duration_ms" >= 0), "callback_id" varchar(40) NOT NULL REFERENCES "jobs_callback" ("id") DEFERRABLE INITIALLY DEFERRED);
INSERT INTO "jobs_callbacktry" VALUES(1,1,'2026-11-26 10:40:14.220453',NULL,'ConnectionRefusedError: [Errno 111] Connect call failed (''127.0.0.1'', 9)',0,'msg_01M8BQ22VC37T8DWX522461Y07');
INSERT INTO "jobs_callbacktry" VALUES(2,2,'2026-11-26 10:40:18.891035',NULL,'ConnectionRefusedError: [Errno 111] Connect call failed (''127.0.0.1'', 9)',0,'msg_01M8BQ22VC37T8DWX522461Y07');
INSERT INTO "jobs_callbacktry" VALUES(3,1,'2026-11-26 10:40:38.936469',NULL,'ConnectionRefusedError: [Errno 111] Connect call failed (''127.0.0.1'', 9)',0,'msg_01M8BQ2V015ZXRBGZCKJA7T416');
CREATE TABLE "jobs_event" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "seq" integer unsigned NOT NULL CHECK ("seq" >= 0), "type" varchar(32) NOT NULL, "at" datetime NOT NULL, "data" text NOT NULL CHECK ((JSON_VALID("data") OR "data" IS NULL)), "job_id" varchar(26) NOT NULL REFERENCES "jobs_job" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "events_are_numbered" UNIQUE ("job_id", "seq"));
INSERT INTO "jobs_event" VALUES(1,1,'queued','2026-11-26 10:40:08.842475','{"status": "queued", "priority": 5}','01M8BQ1XMA3862Z0W5HHSPCDZW');
INSERT INTO "jobs_event" VALUES(2,1,'queued','2026-11-26 10:40:08.905587','{"status": "queued", "priority": 5}','01M8BQ1XP959N8ZXARVEFAGCKG');
INSERT INTO "jobs_event" VALUES(3,1,'queued','2026-11-26 10:40:08.917504','{"status": "queued", "priority": 5}','01M8BQ1XPN9AZ61JZWPPP3Y238');
INSERT INTO "jobs_event" VALUES(4,1,'queued','2026-11-26 10:40:08.929031','{"status": "queued", "priority": 5}','01M8BQ1XQ16JHF2KS34VEXTVMA');
INSERT INTO "jobs_event" VALUES(5,1,'queued','2026-11-26 10:40:08.945841','{"status": "queued", "priority": 5}','01M8BQ1XQHD09AC12JNHN5EQNX');
INSERT INTO "jobs_event" VALUES(6,1,'queued','2026-11-26 10:40:08.964540','{"status": "queued", "priority": 5}','01M8BQ1XR4DBFDVPT5XHBXVPV4');
INSERT INTO "jobs_event" VALUES(7,2,'started','2026-11-26 10:40:08.988822','{"attempt": 1, "server": "zimg-server-1", "slot": 2, "status": "running"}','01M8BQ1XPN9AZ61JZWPPP3Y238');
INSERT INTO "jobs_event" VALUES(8,2,'started','2026-11-26 10:40:08.990550','{"attempt": 1, "server": "zimg-server-1", "slot": 1, "status": "running"}','01M8BQ1XP959N8ZXARVEFAGCKG');
INSERT INTO "jobs_event" VALUES(9,1,'scheduled','2026-11-26 10:40:09.045276','{"status": "scheduled", "priority": 5, "run_at": "2027-01-01T00:00:00+00:00"}','01M8BQ1XTNFB0AMMF2QHA9NF9B');
INSERT INTO "jobs_event" VALUES(10,2,'started','2026-11-26 10:40:09.020382','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ1XMA3862Z0W5HHSPCDZW');
INSERT INTO "jobs_event" VALUES(11,2,'started','2026-11-26 10:40:09.025044','{"attempt": 1, "server": "zimg-server-1", "slot": 3, "status": "running"}','01M8BQ1XQ16JHF2KS34VEXTVMA');
INSERT INTO "jobs_event" VALUES(12,3,'completed','2026-11-26 10:40:09.231301','{"attempt": 1, "status": "completed"}','01M8BQ1XPN9AZ61JZWPPP3Y238');
INSERT INTO "jobs_event" VALUES(13,2,'started','2026-11-26 10:40:09.233759','{"attempt": 1, "server": "zimg-server-1", "slot": 2, "status": "running"}','01M8BQ1XR4DBFDVPT5XHBXVPV4');
INSERT INTO "jobs_event" VALUES(14,3,'completed','2026-11-26 10:40:09.230570','{"attempt": 1, "status": "completed"}','01M8BQ1XP959N8ZXARVEFAGCKG');
INSERT INTO "jobs_event" VALUES(15,3,'completed','2026-11-26 10:40:09.235074','{"attempt": 1, "status": "completed"}','01M8BQ1XQ16JHF2KS34VEXTVMA');
INSERT INTO "jobs_event" VALUES(16,3,'completed','2026-11-26 10:40:09.235429','{"attempt": 1, "status": "completed"}','01M8BQ1XMA3862Z0W5HHSPCDZW');
INSERT INTO "jobs_event" VALUES(17,2,'started','2026-11-26 10:40:09.238013','{"attempt": 1, "server": "zimg-server-1", "slot": 1, "status": "running"}','01M8BQ1XQHD09AC12JNHN5EQNX');
INSERT INTO "jobs_event" VALUES(18,3,'failed','2026-11-26 10:40:09.336801','{"attempt": 1, "status": "failed", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed (all 0 retries used)"}}','01M8BQ1XR4DBFDVPT5XHBXVPV4');
INSERT INTO "jobs_event" VALUES(19,3,'failed','2026-11-26 10:40:09.343125','{"attempt": 1, "status": "failed", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed (all 0 retries used)"}}','01M8BQ1XQHD09AC12JNHN5EQNX');
INSERT INTO "jobs_event" VALUES(20,1,'queued','2026-11-26 10:40:14.070254','{"status": "queued", "priority": 5}','01M8BQ22QPB0QQDDCKMM3MHG6M');
INSERT INTO "jobs_event" VALUES(21,1,'queued','2026-11-26 10:40:14.080244','{"status": "queued", "priority": 5}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(22,2,'started','2026-11-26 10:40:14.083849','{"attempt": 1, "server": "zimg-server-1", "slot": 3, "status": "running"}','01M8BQ22QPB0QQDDCKMM3MHG6M');
INSERT INTO "jobs_event" VALUES(23,2,'started','2026-11-26 10:40:14.088903','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(24,3,'completed','2026-11-26 10:40:14.188461','{"attempt": 1, "status": "completed"}','01M8BQ22QPB0QQDDCKMM3MHG6M');
INSERT INTO "jobs_event" VALUES(25,3,'retrying','2026-11-26 10:40:14.191851','{"attempt": 1, "due_at": "2026-11-26T10:40:15.268130+00:00", "status": "retrying", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(26,4,'queued','2026-11-26 10:40:16.206921','{"status": "queued", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(27,5,'started','2026-11-26 10:40:16.240859','{"attempt": 2, "server": "zimg-server-1", "slot": 2, "status": "running", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(28,6,'retrying','2026-11-26 10:40:16.343966','{"attempt": 2, "due_at": "2026-11-26T10:40:18.396535+00:00", "status": "retrying", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(29,1,'queued','2026-11-26 10:40:17.092185','{"status": "queued", "priority": 5}','01M8BQ25P45F64TCFPR69YARK3');
INSERT INTO "jobs_event" VALUES(30,1,'queued','2026-11-26 10:40:17.101198','{"status": "queued", "priority": 5}','01M8BQ25PD66WW6J6HKMJ1BM02');
INSERT INTO "jobs_event" VALUES(31,2,'started','2026-11-26 10:40:17.102035','{"attempt": 1, "server": "zimg-server-1", "slot": 1, "status": "running"}','01M8BQ25P45F64TCFPR69YARK3');
INSERT INTO "jobs_event" VALUES(32,1,'queued','2026-11-26 10:40:17.109400','{"status": "queued", "priority": 5}','01M8BQ25PN5EXZBVDR80XBVW62');
INSERT INTO "jobs_event" VALUES(33,1,'queued','2026-11-26 10:40:17.117163','{"status": "queued", "priority": 5}','01M8BQ25PX3F1KKEF6ZP8E8TYB');
INSERT INTO "jobs_event" VALUES(34,2,'started','2026-11-26 10:40:17.111241','{"attempt": 1, "server": "zimg-server-1", "slot": 3, "status": "running"}','01M8BQ25PD66WW6J6HKMJ1BM02');
INSERT INTO "jobs_event" VALUES(35,2,'started','2026-11-26 10:40:17.119401','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ25PN5EXZBVDR80XBVW62');
INSERT INTO "jobs_event" VALUES(36,1,'queued','2026-11-26 10:40:17.131034','{"status": "queued", "priority": 5}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(37,2,'started','2026-11-26 10:40:17.128868','{"attempt": 1, "server": "zimg-server-1", "slot": 2, "status": "running"}','01M8BQ25PX3F1KKEF6ZP8E8TYB');
INSERT INTO "jobs_event" VALUES(38,1,'queued','2026-11-26 10:40:17.140309','{"status": "queued", "priority": 5}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(39,2,'started','2026-11-26 10:40:17.143647','{"attempt": 1, "server": "trellis-server-1", "slot": 0, "status": "running"}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(40,2,'started','2026-11-26 10:40:17.147891','{"attempt": 1, "server": "trellis-server-1", "slot": 1, "status": "running"}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(41,3,'accepted','2026-11-26 10:40:17.149505','{"attempt": 1, "remote_id": "ba541fa6dd834075ba0464d257130880"}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(42,3,'accepted','2026-11-26 10:40:17.154431','{"attempt": 1, "remote_id": "8968b20648ba45e8b1a08a348276d8fc"}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(43,4,'progress','2026-11-26 10:40:18.152296','{"attempt": 1, "part": 1, "progress": 0.05}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(44,4,'progress','2026-11-26 10:40:18.156345','{"attempt": 1, "part": 1, "progress": 0.05}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(45,5,'progress','2026-11-26 10:40:19.154839','{"attempt": 1, "part": 2, "progress": 0.1}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(46,5,'progress','2026-11-26 10:40:19.157981','{"attempt": 1, "part": 2, "progress": 0.1}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(47,7,'queued','2026-11-26 10:40:19.206640','{"status": "queued", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(48,6,'progress','2026-11-26 10:40:20.157386','{"attempt": 1, "part": 3, "progress": 0.15}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(49,6,'progress','2026-11-26 10:40:20.159826','{"attempt": 1, "part": 3, "progress": 0.15}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(50,7,'progress','2026-11-26 10:40:21.160024','{"attempt": 1, "part": 4, "progress": 0.2}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(51,7,'progress','2026-11-26 10:40:21.161723','{"attempt": 1, "part": 4, "progress": 0.2}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(52,8,'progress','2026-11-26 10:40:22.310820','{"attempt": 1, "part": 5, "progress": 0.25}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(53,8,'progress','2026-11-26 10:40:22.312273','{"attempt": 1, "part": 5, "progress": 0.25}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(54,9,'progress','2026-11-26 10:40:23.343065','{"attempt": 1, "part": 6, "progress": 0.3}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(55,9,'progress','2026-11-26 10:40:23.343322','{"attempt": 1, "part": 6, "progress": 0.3}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(56,10,'progress','2026-11-26 10:40:24.448239','{"attempt": 1, "part": 7, "progress": 0.35}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(57,10,'progress','2026-11-26 10:40:24.448619','{"attempt": 1, "part": 7, "progress": 0.35}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(58,11,'progress','2026-11-26 10:40:25.461337','{"attempt": 1, "part": 8, "progress": 0.4}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(59,11,'progress','2026-11-26 10:40:25.473264','{"attempt": 1, "part": 8, "progress": 0.4}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(60,12,'progress','2026-11-26 10:40:26.490169','{"attempt": 1, "part": 9, "progress": 0.45}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(61,12,'progress','2026-11-26 10:40:26.491664','{"attempt": 1, "part": 9, "progress": 0.45}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(62,13,'progress','2026-11-26 10:40:27.541407','{"attempt": 1, "part": 10, "progress": 0.5}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(63,13,'progress','2026-11-26 10:40:27.542335','{"attempt": 1, "part": 10, "progress": 0.5}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(64,14,'progress','2026-11-26 10:40:28.563627','{"attempt": 1, "part": 11, "progress": 0.55}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(65,14,'progress','2026-11-26 10:40:28.583163','{"attempt": 1, "part": 11, "progress": 0.55}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(66,15,'progress','2026-11-26 10:40:29.644251','{"attempt": 1, "part": 12, "progress": 0.6}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(67,15,'progress','2026-11-26 10:40:29.736274','{"attempt": 1, "part": 12, "progress": 0.6}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(68,16,'progress','2026-11-26 10:40:30.714013','{"attempt": 1, "part": 13, "progress": 0.65}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(69,16,'progress','2026-11-26 10:40:30.760236','{"attempt": 1, "part": 13, "progress": 0.65}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(70,17,'progress','2026-11-26 10:40:31.797279','{"attempt": 1, "part": 14, "progress": 0.7}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(71,17,'progress','2026-11-26 10:40:31.966106','{"attempt": 1, "part": 14, "progress": 0.7}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(72,18,'progress','2026-11-26 10:40:32.851353','{"attempt": 1, "part": 15, "progress": 0.75}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(73,18,'progress','2026-11-26 10:40:33.049153','{"attempt": 1, "part": 15, "progress": 0.75}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(74,19,'progress','2026-11-26 10:40:34.105421','{"attempt": 1, "part": 16, "progress": 0.8}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(75,19,'progress','2026-11-26 10:40:34.217470','{"attempt": 1, "part": 16, "progress": 0.8}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(76,20,'progress','2026-11-26 10:40:35.173660','{"attempt": 1, "part": 17, "progress": 0.85}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(77,20,'progress','2026-11-26 10:40:35.364164','{"attempt": 1, "part": 17, "progress": 0.85}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(78,21,'progress','2026-11-26 10:40:36.209920','{"attempt": 1, "part": 18, "progress": 0.95}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(79,21,'progress','2026-11-26 10:40:36.399194','{"attempt": 1, "part": 18, "progress": 0.9}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(80,3,'completed','2026-11-26 10:40:37.228232','{"attempt": 1, "status": "completed"}','01M8BQ25PD66WW6J6HKMJ1BM02');
INSERT INTO "jobs_event" VALUES(81,3,'completed','2026-11-26 10:40:37.229163','{"attempt": 1, "status": "completed"}','01M8BQ25PN5EXZBVDR80XBVW62');
INSERT INTO "jobs_event" VALUES(82,3,'completed','2026-11-26 10:40:37.242088','{"attempt": 1, "status": "completed"}','01M8BQ25PX3F1KKEF6ZP8E8TYB');
INSERT INTO "jobs_event" VALUES(83,22,'completed','2026-11-26 10:40:37.279297','{"attempt": 1, "status": "completed"}','01M8BQ25QMEKYA81RCBF1MM0C1');
INSERT INTO "jobs_event" VALUES(84,8,'started','2026-11-26 10:40:37.298718','{"attempt": 3, "server": "zimg-server-1", "slot": 3, "status": "running", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(85,22,'progress','2026-11-26 10:40:37.336421','{"attempt": 1, "part": 19, "progress": 0.95}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(86,23,'completed','2026-11-26 10:40:37.337149','{"attempt": 1, "status": "completed"}','01M8BQ25QBA7YJX6VW48KFYE6T');
INSERT INTO "jobs_event" VALUES(87,9,'failed','2026-11-26 10:40:37.428375','{"attempt": 3, "status": "failed", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed (the same failure 3 times in a row: retries do not help)"}}','01M8BQ22R006A0P42MHKPC3VKQ');
INSERT INTO "jobs_event" VALUES(88,1,'scheduled','2026-11-26 10:40:38.621601','{"status": "scheduled", "priority": 5, "run_at": "2027-01-01T00:00:00+00:00"}','01M8BQ2TPX9NEGYQ94DGC5QTAD');
INSERT INTO "jobs_event" VALUES(89,2,'cancelled','2026-11-26 10:40:38.637770','{"status": "cancelled", "error": {"code": "cancelled", "message": "Cancelled on request."}}','01M8BQ2TPX9NEGYQ94DGC5QTAD');
INSERT INTO "jobs_event" VALUES(90,1,'queued','2026-11-26 10:40:38.724621','{"status": "queued", "priority": 5}','01M8BQ2TT4C2J16QEJ3T2K1GRT');
INSERT INTO "jobs_event" VALUES(91,1,'queued','2026-11-26 10:40:38.782277','{"status": "queued", "priority": 5}','01M8BQ2TVY9QN0X2SNAY3KDK7M');
INSERT INTO "jobs_event" VALUES(92,2,'started','2026-11-26 10:40:38.793714','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ2TT4C2J16QEJ3T2K1GRT');
INSERT INTO "jobs_event" VALUES(93,2,'started','2026-11-26 10:40:38.797663','{"attempt": 1, "server": "zimg-server-1", "slot": 2, "status": "running"}','01M8BQ2TVY9QN0X2SNAY3KDK7M');
INSERT INTO "jobs_event" VALUES(94,1,'queued','2026-11-26 10:40:38.802472','{"status": "queued", "priority": 1}','01M8BQ2TWJAR592ESWRV8T042E');
INSERT INTO "jobs_event" VALUES(95,2,'started','2026-11-26 10:40:38.815219','{"attempt": 1, "server": "zimg-server-1", "slot": 3, "status": "running"}','01M8BQ2TWJAR592ESWRV8T042E');
INSERT INTO "jobs_event" VALUES(96,1,'queued','2026-11-26 10:40:38.825149','{"status": "queued", "priority": 5}','01M8BQ2TX9FA0YTWF11CB0C2KW');
INSERT INTO "jobs_event" VALUES(97,1,'queued','2026-11-26 10:40:38.834041','{"status": "queued", "priority": 5}','01M8BQ2TXJ0R425MNFVREPHSDV');
INSERT INTO "jobs_event" VALUES(98,1,'queued','2026-11-26 10:40:38.845319','{"status": "queued", "priority": 5}','01M8BQ2TXX1EDV5S9HCBS0GZ7K');
INSERT INTO "jobs_event" VALUES(99,2,'started','2026-11-26 10:40:38.848129','{"attempt": 1, "server": "trellis-server-1", "slot": 1, "status": "running"}','01M8BQ2TXJ0R425MNFVREPHSDV');
INSERT INTO "jobs_event" VALUES(100,1,'queued','2026-11-26 10:40:38.861908','{"status": "queued", "priority": 5}','01M8BQ2TYD2QE2ASK5BY5MB9BT');
INSERT INTO "jobs_event" VALUES(101,2,'started','2026-11-26 10:40:38.857768','{"attempt": 1, "server": "trellis-server-1", "slot": 0, "status": "running"}','01M8BQ2TXX1EDV5S9HCBS0GZ7K');
INSERT INTO "jobs_event" VALUES(102,1,'queued','2026-11-26 10:40:38.875438','{"status": "queued", "priority": 5}','01M8BQ2TYV287EPJBDMDW6RPXJ');
INSERT INTO "jobs_event" VALUES(103,3,'accepted','2026-11-26 10:40:38.870969','{"attempt": 1, "remote_id": "5f4134dc1f5f4cbcb7911805ff4972af"}','01M8BQ2TXJ0R425MNFVREPHSDV');
INSERT INTO "jobs_event" VALUES(104,3,'accepted','2026-11-26 10:40:38.872331','{"attempt": 1, "remote_id": "5e2c6a1194c94ccdb23d42ad9956dcc5"}','01M8BQ2TXX1EDV5S9HCBS0GZ7K');
INSERT INTO "jobs_event" VALUES(105,1,'queued','2026-11-26 10:40:38.882410','{"status": "queued", "priority": 5}','01M8BQ2TZ26060F587RPQXB3ZF');
INSERT INTO "jobs_event" VALUES(106,1,'queued','2026-11-26 10:40:38.887860','{"status": "queued", "priority": 5}','01M8BQ2TZ7DZ2V8DZA2MYKS5VS');
INSERT INTO "jobs_event" VALUES(107,1,'queued','2026-11-26 10:40:38.893450','{"status": "queued", "priority": 5}','01M8BQ2TZDCPTKFVT6V71051KY');
INSERT INTO "jobs_event" VALUES(108,1,'queued','2026-11-26 10:40:38.899085','{"status": "queued", "priority": 5}','01M8BQ2TZK3Y0P5FQQ3KR6EF8W');
INSERT INTO "jobs_event" VALUES(109,1,'queued','2026-11-26 10:40:38.903956','{"status": "queued", "priority": 5}','01M8BQ2TZQ18V2QQS7HSGSZY9R');
INSERT INTO "jobs_event" VALUES(110,3,'completed','2026-11-26 10:40:38.913342','{"attempt": 1, "status": "completed"}','01M8BQ2TT4C2J16QEJ3T2K1GRT');
INSERT INTO "jobs_event" VALUES(111,2,'started','2026-11-26 10:40:38.914397','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ2TX9FA0YTWF11CB0C2KW');
INSERT INTO "jobs_event" VALUES(112,3,'retrying','2026-11-26 10:40:39.030751','{"attempt": 1, "due_at": "2026-11-26T10:40:40.109894+00:00", "status": "retrying", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ2TX9FA0YTWF11CB0C2KW');
INSERT INTO "jobs_event" VALUES(113,2,'started','2026-11-26 10:40:39.032434','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ2TYV287EPJBDMDW6RPXJ');
INSERT INTO "jobs_event" VALUES(114,3,'completed','2026-11-26 10:40:39.152365','{"attempt": 1, "status": "completed"}','01M8BQ2TYV287EPJBDMDW6RPXJ');
INSERT INTO "jobs_event" VALUES(115,2,'started','2026-11-26 10:40:39.161054','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ2TZ26060F587RPQXB3ZF');
INSERT INTO "jobs_event" VALUES(116,3,'completed','2026-11-26 10:40:39.308318','{"attempt": 1, "status": "completed"}','01M8BQ2TZ26060F587RPQXB3ZF');
INSERT INTO "jobs_event" VALUES(117,2,'started','2026-11-26 10:40:39.344411','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ2TZ7DZ2V8DZA2MYKS5VS');
INSERT INTO "jobs_event" VALUES(118,3,'completed','2026-11-26 10:40:39.473213','{"attempt": 1, "status": "completed"}','01M8BQ2TZ7DZ2V8DZA2MYKS5VS');
INSERT INTO "jobs_event" VALUES(119,2,'started','2026-11-26 10:40:39.556381','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ2TZDCPTKFVT6V71051KY');
INSERT INTO "jobs_event" VALUES(120,3,'completed','2026-11-26 10:40:39.662564','{"attempt": 1, "status": "completed"}','01M8BQ2TZDCPTKFVT6V71051KY');
INSERT INTO "jobs_event" VALUES(121,2,'started','2026-11-26 10:40:39.741610','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ2TZK3Y0P5FQQ3KR6EF8W');
INSERT INTO "jobs_event" VALUES(122,3,'completed','2026-11-26 10:40:39.855628','{"attempt": 1, "status": "completed"}','01M8BQ2TZK3Y0P5FQQ3KR6EF8W');
INSERT INTO "jobs_event" VALUES(123,4,'progress','2026-11-26 10:40:39.936151','{"attempt": 1, "part": 1, "progress": 0.05}','01M8BQ2TXJ0R425MNFVREPHSDV');
INSERT INTO "jobs_event" VALUES(124,4,'progress','2026-11-26 10:40:39.936544','{"attempt": 1, "part": 1, "progress": 0.05}','01M8BQ2TXX1EDV5S9HCBS0GZ7K');
INSERT INTO "jobs_event" VALUES(125,2,'started','2026-11-26 10:40:39.976189','{"attempt": 1, "server": "zimg-server-1", "slot": 0, "status": "running"}','01M8BQ2TZQ18V2QQS7HSGSZY9R');
INSERT INTO "jobs_event" VALUES(126,3,'completed','2026-11-26 10:40:40.081130','{"attempt": 1, "status": "completed"}','01M8BQ2TZQ18V2QQS7HSGSZY9R');
INSERT INTO "jobs_event" VALUES(127,4,'queued','2026-11-26 10:40:40.208831','{"status": "queued", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ2TX9FA0YTWF11CB0C2KW');
INSERT INTO "jobs_event" VALUES(128,5,'started','2026-11-26 10:40:40.216351','{"attempt": 2, "server": "zimg-server-1", "slot": 0, "status": "running", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ2TX9FA0YTWF11CB0C2KW');
INSERT INTO "jobs_event" VALUES(129,6,'retrying','2026-11-26 10:40:40.321172','{"attempt": 2, "due_at": "2026-11-26T10:40:42.297289+00:00", "status": "retrying", "error": {"code": "run_failed", "message": "RuntimeError: the simulated model failed"}}','01M8BQ2TX9FA0YTWF11CB0C2KW');
INSERT INTO "jobs_event" VALUES(130,5,'progress','2026-11-26 10:40:40.942731','{"attempt": 1, "part": 2, "progress": 0.1}','01M8BQ2TXX1EDV5S9HCBS0GZ7K');
INSERT INTO "jobs_event" VALUES(131,5,'progress','2026-11-26 10:40:40.946353','{"attempt": 1, "part": 2, "progress": 0.1}','01M8BQ2TXJ0R425MNFVREPHSDV');
CREATE TABLE "jobs_idempotencykey" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "key" varchar(255) NOT NULL, "fingerprint" varchar(64) NOT NULL, "batch" text NULL CHECK ((JSON_VALID("batch") OR "batch" IS NULL)), "job_id" varchar(26) NOT NULL REFERENCES "jobs_job" ("id") DEFERRABLE INITIALLY DEFERRED, "tenant_id" bigint NOT NULL REFERENCES "jobs_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_use_per_tenant_and_key" UNIQUE ("tenant_id", "key"));
CREATE TABLE "jobs_job" ("id" varchar(26) NOT NULL PRIMARY KEY, "model" varchar(64) NOT NULL, "pool" varchar(64) NOT NULL, "fleet" varchar(64) NOT NULL, "payload" text NOT NULL CHECK ((JSON_VALID("payload") OR "payload" IS NULL)), "priority" smallint unsigned NOT NULL CHECK ("priority" >= 0), "tags" text NOT NULL CHECK ((JSON_VALID("tags") OR "tags" IS NULL)), "metadata" text NOT NULL CHECK ((JSON_VALID("metadata") OR "metadata" IS NULL)), "callback_url" varchar(2000) NOT NULL, "max_retries" integer unsigned NULL CHECK ("max_retries" >= 0), "state" varchar(10) NOT NULL, "error_code" varchar(64) NOT NULL, "error_message" text NOT NULL, "result" text NULL CHECK ((JSON_VALID("result") OR "result" IS NULL)), "place_us" bigint NOT NULL, "created_at" datetime NOT NULL, "started_at" datetime NULL, "finished_at" datetime NULL, "due_at" datetime NULL, "deadline_at" datetime NULL, "start_deadline_at" datetime NULL, "cancel_requested_at" datetime NULL, "dismissed_at" datetime NULL, "round" integer unsigned NOT NULL CHECK ("round" >= 0), "live_attempt" varchar(26) NULL, "attempts_made" integer unsigned NOT NULL CHECK ("attempts_made" >= 0), "tries" integer unsigned NOT NULL CHECK ("tries" >= 0), "free_connects" integer unsigned NOT NULL CHECK ("free_connects" >= 0), "deaths" integer unsigned NOT NULL CHECK ("deaths" >= 0), "avoid_server" varchar(64) NOT NULL, "event_seq" integer unsigned NOT NULL CHECK ("event_seq" >= 0), "tenant_id" bigint NOT NULL REFERENCES "jobs_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, "error_fingerprint" varchar(16) DEFAULT '' NOT NULL, "max_run_seconds" real NULL, "run_at" datetime NULL, "cancelled_by_operator" bool DEFAULT 0 NOT NULL, "queue_deadline_at" datetime NULL, "same_failures" integer unsigned DEFAULT 0 NOT NULL CHECK ("same_failures" >= 0), "refusals_folded" integer unsigned DEFAULT 0 NOT NULL CHECK ("refusals_folded" >= 0), CONSTRAINT "finished_at_iff_final" CHECK ((("finished_at" IS NOT NULL AND "state" IN ('cancelled', 'completed', 'failed')) OR (NOT ("state" IN ('cancelled', 'completed', 'failed')) AND "finished_at" IS NULL))), CONSTRAINT "live_attempt_iff_running" CHECK ((("live_attempt" IS NOT NULL AND "state" = 'running') OR (NOT ("state" = 'running') AND "live_attempt" IS NULL))));
INSERT INTO "jobs_job" VALUES('01M8BQ1XMA3862Z0W5HHSPCDZW','zimg','zimg','main','{"seconds": 0.2}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.2, "echo": null}',1795689608842475,'2026-11-26 10:40:08.842475','2026-11-26 10:40:09.020382','2026-11-26 10:40:09.235429',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:08.842475',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ1XP959N8ZXARVEFAGCKG','zimg','zimg','main','{"seconds": 0.2}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.2, "echo": null}',1795689608905587,'2026-11-26 10:40:08.905587','2026-11-26 10:40:08.990550','2026-11-26 10:40:09.230570',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:08.905587',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ1XPN9AZ61JZWPPP3Y238','zimg','zimg','main','{"seconds": 0.2}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.2, "echo": null}',1795689608917504,'2026-11-26 10:40:08.917504','2026-11-26 10:40:08.988822','2026-11-26 10:40:09.231301',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:08.917504',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ1XQ16JHF2KS34VEXTVMA','zimg','zimg','main','{"seconds": 0.2}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.2, "echo": null}',1795689608929031,'2026-11-26 10:40:08.929031','2026-11-26 10:40:09.025044','2026-11-26 10:40:09.235074',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:08.929031',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ1XQHD09AC12JNHN5EQNX','zimg','zimg','main','{"seconds": 0.1, "fault": "fail"}',5,'[]','{}','',0,'failed','run_failed','RuntimeError: the simulated model failed (all 0 retries used)',NULL,1795689608945841,'2026-11-26 10:40:08.945841','2026-11-26 10:40:09.238013','2026-11-26 10:40:09.343125',NULL,NULL,NULL,NULL,NULL,1,NULL,1,1,0,0,'',3,2,'223a41a44428e6c1',NULL,NULL,0,'2026-11-27 10:40:08.945841',1,0);
INSERT INTO "jobs_job" VALUES('01M8BQ1XR4DBFDVPT5XHBXVPV4','zimg','zimg','main','{"seconds": 0.1, "fault": "fail"}',5,'[]','{}','',0,'failed','run_failed','RuntimeError: the simulated model failed (all 0 retries used)',NULL,1795689608964540,'2026-11-26 10:40:08.964540','2026-11-26 10:40:09.233759','2026-11-26 10:40:09.336801',NULL,NULL,NULL,NULL,NULL,1,NULL,1,1,0,0,'',3,2,'223a41a44428e6c1',NULL,NULL,0,'2026-11-27 10:40:08.964540',1,0);
INSERT INTO "jobs_job" VALUES('01M8BQ1XTNFB0AMMF2QHA9NF9B','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'scheduled','','',NULL,1798761600000000,'2026-11-26 10:40:09.045276',NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL,0,0,0,0,'',1,2,'',NULL,'2027-01-01 00:00:00',0,'2027-01-02 00:00:00',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ22QPB0QQDDCKMM3MHG6M','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','http://127.0.0.1:9/nobody',NULL,'completed','','','{"model": "zimg", "seconds": 0.1, "echo": null}',1795689614070254,'2026-11-26 10:40:14.070254','2026-11-26 10:40:14.083849','2026-11-26 10:40:14.188461',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:14.070254',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ22R006A0P42MHKPC3VKQ','zimg','zimg','main','{"seconds": 0.1, "fault": "fail", "times": 9}',5,'[]','{}','',5,'failed','run_failed','RuntimeError: the simulated model failed (the same failure 3 times in a row: retries do not help)',NULL,1795689614080244,'2026-11-26 10:40:14.080244','2026-11-26 10:40:14.088903','2026-11-26 10:40:37.428375',NULL,NULL,NULL,NULL,NULL,1,NULL,3,3,0,0,'',9,2,'6dbf5f77e9ba3372',NULL,NULL,0,'2026-11-27 10:40:14.286299',3,0);
INSERT INTO "jobs_job" VALUES('01M8BQ25P45F64TCFPR69YARK3','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'running','','',NULL,1795689617092185,'2026-11-26 10:40:17.092185','2026-11-26 10:40:17.102035',NULL,NULL,NULL,NULL,NULL,NULL,1,'01M8BQ25PC8SKMTN228BNQ5KEF',1,0,0,0,'',2,2,'',NULL,NULL,0,'2026-11-27 10:40:17.092185',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ25PD66WW6J6HKMJ1BM02','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 20.0, "echo": null}',1795689617101198,'2026-11-26 10:40:17.101198','2026-11-26 10:40:17.111241','2026-11-26 10:40:37.228232',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:17.101198',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ25PN5EXZBVDR80XBVW62','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 20.0, "echo": null}',1795689617109400,'2026-11-26 10:40:17.109400','2026-11-26 10:40:17.119401','2026-11-26 10:40:37.229163',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:17.109400',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ25PX3F1KKEF6ZP8E8TYB','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 20.0, "echo": null}',1795689617117163,'2026-11-26 10:40:17.117163','2026-11-26 10:40:17.128868','2026-11-26 10:40:37.242088',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:17.117163',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ25QBA7YJX6VW48KFYE6T','trellis','trellis','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "trellis", "seconds": 20.0, "echo": null}',1795689617131034,'2026-11-26 10:40:17.131034','2026-11-26 10:40:17.143647','2026-11-26 10:40:37.337149',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',23,2,'',NULL,NULL,0,'2026-11-27 10:40:17.131034',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ25QMEKYA81RCBF1MM0C1','trellis','trellis','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "trellis", "seconds": 20.0, "echo": null}',1795689617140309,'2026-11-26 10:40:17.140309','2026-11-26 10:40:17.147891','2026-11-26 10:40:37.279297',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',22,2,'',NULL,NULL,0,'2026-11-27 10:40:17.140309',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TPX9NEGYQ94DGC5QTAD','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'cancelled','cancelled','Cancelled on request.',NULL,1798761600000000,'2026-11-26 10:40:38.621601',NULL,'2026-11-26 10:40:38.637770',NULL,NULL,NULL,NULL,NULL,1,NULL,0,0,0,0,'',2,2,'',NULL,'2027-01-01 00:00:00',0,'2027-01-02 00:00:00',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TT4C2J16QEJ3T2K1GRT','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','http://127.0.0.1:9/nobody',NULL,'completed','','','{"model": "zimg", "seconds": 0.1, "echo": null}',1795689638724621,'2026-11-26 10:40:38.724621','2026-11-26 10:40:38.793714','2026-11-26 10:40:38.913342',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:38.724621',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TVY9QN0X2SNAY3KDK7M','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'running','','',NULL,1795689638782277,'2026-11-26 10:40:38.782277','2026-11-26 10:40:38.797663',NULL,NULL,NULL,NULL,NULL,NULL,1,'01M8BQ2TWDAV4QSA0C9TFX32QW',1,0,0,0,'',2,2,'',NULL,NULL,0,'2026-11-27 10:40:38.782277',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TWJAR592ESWRV8T042E','zimg','zimg','main','{"seconds": 0.1}',1,'[]','{}','',NULL,'running','','',NULL,1795689638802472,'2026-11-26 10:40:38.802472','2026-11-26 10:40:38.815219',NULL,NULL,NULL,NULL,NULL,NULL,1,'01M8BQ2TWT1MRDF64MMQV7Q2E9',1,0,0,0,'',2,2,'',NULL,NULL,0,'2026-11-27 10:40:38.802472',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TX9FA0YTWF11CB0C2KW','zimg','zimg','main','{"seconds": 0.1, "fault": "fail", "times": 9}',5,'[]','{}','',5,'retrying','run_failed','RuntimeError: the simulated model failed',NULL,1795689638825149,'2026-11-26 10:40:38.825149','2026-11-26 10:40:38.914397',NULL,'2026-11-26 10:40:42.297289',NULL,NULL,NULL,NULL,1,NULL,2,2,0,0,'zimg-server-1',6,2,'35a498be22e1a288',NULL,NULL,0,'2026-11-27 10:40:39.046324',2,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TXJ0R425MNFVREPHSDV','trellis','trellis','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'running','','',NULL,1795689638834041,'2026-11-26 10:40:38.834041','2026-11-26 10:40:38.848129',NULL,NULL,NULL,NULL,NULL,NULL,1,'01M8BQ2TXVA78HM7GSVMVQV4YD',1,0,0,0,'',5,2,'',NULL,NULL,0,'2026-11-27 10:40:38.834041',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TXX1EDV5S9HCBS0GZ7K','trellis','trellis','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'running','','',NULL,1795689638845319,'2026-11-26 10:40:38.845319','2026-11-26 10:40:38.857768',NULL,NULL,NULL,NULL,NULL,NULL,1,'01M8BQ2TY6APTJVA7CT8FV9RK5',1,0,0,0,'',5,2,'',NULL,NULL,0,'2026-11-27 10:40:38.845319',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TYD2QE2ASK5BY5MB9BT','trellis','trellis','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'queued','','',NULL,1795689638861908,'2026-11-26 10:40:38.861908',NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,NULL,0,0,0,0,'',1,2,'',NULL,NULL,0,'2026-11-27 10:40:38.861908',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TYV287EPJBDMDW6RPXJ','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.1, "echo": null}',1795689638875438,'2026-11-26 10:40:38.875438','2026-11-26 10:40:39.032434','2026-11-26 10:40:39.152365',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:38.875438',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TZ26060F587RPQXB3ZF','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.1, "echo": null}',1795689638882410,'2026-11-26 10:40:38.882410','2026-11-26 10:40:39.161054','2026-11-26 10:40:39.308318',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:38.882410',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TZ7DZ2V8DZA2MYKS5VS','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.1, "echo": null}',1795689638887860,'2026-11-26 10:40:38.887860','2026-11-26 10:40:39.344411','2026-11-26 10:40:39.473213',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:38.887860',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TZDCPTKFVT6V71051KY','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.1, "echo": null}',1795689638893450,'2026-11-26 10:40:38.893450','2026-11-26 10:40:39.556381','2026-11-26 10:40:39.662564',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:38.893450',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TZK3Y0P5FQQ3KR6EF8W','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.1, "echo": null}',1795689638899085,'2026-11-26 10:40:38.899085','2026-11-26 10:40:39.741610','2026-11-26 10:40:39.855628',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:38.899085',0,0);
INSERT INTO "jobs_job" VALUES('01M8BQ2TZQ18V2QQS7HSGSZY9R','zimg','zimg','main','{"seconds": 0.1}',5,'[]','{}','',NULL,'completed','','','{"model": "zimg", "seconds": 0.1, "echo": null}',1795689638903956,'2026-11-26 10:40:38.903956','2026-11-26 10:40:39.976189','2026-11-26 10:40:40.081130',NULL,NULL,NULL,NULL,NULL,1,NULL,1,0,0,0,'',3,2,'',NULL,NULL,0,'2026-11-27 10:40:38.903956',0,0);
CREATE TABLE "jobs_jobtag" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "tag" varchar(64) NOT NULL, "job_id" varchar(26) NOT NULL REFERENCES "jobs_job" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_row_per_job_and_tag" UNIQUE ("tag", "job_id"));
CREATE TABLE "jobs_purgeledger" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "state" varchar(10) NOT NULL, "count" bigint unsigned NOT NULL CHECK ("count" >= 0), "tenant_id" bigint NOT NULL REFERENCES "jobs_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_line_per_tenant_and_state" UNIQUE ("tenant_id", "state"));
CREATE TABLE "jobs_pushedresult" ("attempt_id" varchar(26) NOT NULL PRIMARY KEY, "job_id" varchar(26) NOT NULL, "body" text NOT NULL CHECK ((JSON_VALID("body") OR "body" IS NULL)), "received_at" datetime NOT NULL, "pushes" integer unsigned DEFAULT 1 NOT NULL CHECK ("pushes" >= 0), "pushed_bytes" bigint DEFAULT 0 NOT NULL);
INSERT INTO "jobs_pushedresult" VALUES('01M8BQ25QKCJZ98DQDK2WDWCGG','01M8BQ25QBA7YJX6VW48KFYE6T','{"status": "success", "result": {"model": "trellis", "seconds": 20.0, "echo": null}}','2026-11-26 10:40:37.331525',1,84);
CREATE TABLE "jobs_receivercircuit" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "receiver" varchar(300) NOT NULL, "failures" integer unsigned NOT NULL CHECK ("failures" >= 0), "failing_since" datetime NOT NULL, "failed_at" datetime NOT NULL, "resting_until" datetime NULL, "rest_seconds" real NOT NULL, "last_error" varchar(500) NOT NULL, "tenant_id" bigint NOT NULL, CONSTRAINT "one_circuit_per_receiver" UNIQUE ("tenant_id", "receiver"));
CREATE TABLE "jobs_rollup" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "span_seconds" integer unsigned NOT NULL CHECK ("span_seconds" >= 0), "at" datetime NOT NULL, "model" varchar(64) NOT NULL, "completed" integer unsigned NOT NULL CHECK ("completed" >= 0), "failed" integer unsigned NOT NULL CHECK ("failed" >= 0), "cancelled" integer unsigned NOT NULL CHECK ("cancelled" >= 0), "gpu_seconds" real NOT NULL, "waits" text NOT NULL CHECK ((JSON_VALID("waits") OR "waits" IS NULL)), "runs" text NOT NULL CHECK ((JSON_VALID("runs") OR "runs" IS NULL)), "tenant_id" bigint NOT NULL REFERENCES "jobs_tenant" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_rollup_per_span" UNIQUE ("span_seconds", "at", "model", "tenant_id"));
INSERT INTO "jobs_rollup" VALUES(1,0,'1970-01-01 00:00:00','zimg',5,2,0,1.41710971699990295746e+00,'[1, 3, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]','[0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]',2);
INSERT INTO "jobs_rollup" VALUES(2,60,'2026-11-26 10:40:00','zimg',5,2,0,1.41710971699990295746e+00,'[1, 3, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]','[0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]',2);
INSERT INTO "jobs_rollup" VALUES(3,600,'2026-11-26 10:40:00','zimg',5,2,0,1.41710971699990295746e+00,'[1, 3, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]','[0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]',2);
INSERT INTO "jobs_rollup" VALUES(4,3600,'2026-11-26 10:00:00','zimg',5,2,0,1.41710971699990295746e+00,'[1, 3, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]','[0, 0, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]',2);
CREATE TABLE "jobs_signinfailure" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "address" varchar(50) NOT NULL, "account" varchar(64) NOT NULL, "count" integer unsigned NOT NULL CHECK ("count" >= 0), "last_at" datetime NOT NULL, CONSTRAINT "one_sign_in_failure_each" UNIQUE ("address", "account"));
CREATE TABLE "jobs_sweeprun" ("name" varchar(40) NOT NULL PRIMARY KEY, "at" datetime NOT NULL, "looked" integer unsigned NOT NULL CHECK ("looked" >= 0), "repaired" integer unsigned NOT NULL CHECK ("repaired" >= 0), "note" varchar(500) NOT NULL);
INSERT INTO "jobs_sweeprun" VALUES('rollups.cursor','2026-11-26 10:40:16.343966',0,0,'77');
INSERT INTO "jobs_sweeprun" VALUES('index_switch','2026-11-26 10:40:36.212599',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('expired_leases','2026-11-26 10:40:36.213720',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('due_retries','2026-11-26 10:40:36.219017',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('due_starts','2026-11-26 10:40:36.219145',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('deadlines','2026-11-26 10:40:36.221373',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('long_waits','2026-11-26 10:40:34.348401',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('fill','2026-11-26 10:40:36.227381',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('due_callbacks','2026-11-26 10:40:36.261619',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('fleet_time','2026-11-26 10:40:34.349871',1,0,'');
INSERT INTO "jobs_sweeprun" VALUES('mirror_registry','2026-11-26 10:40:34.350749',1,0,'');
INSERT INTO "jobs_sweeprun" VALUES('silent_workers','2026-11-26 10:40:36.261742',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('quotas','2026-11-26 10:40:36.261841',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('quarantine','2026-11-26 10:40:36.261890',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('cancelling','2026-11-26 10:40:36.262071',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('orphans','2026-11-26 10:40:35.377624',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('stray_attempts','2026-11-26 10:40:15.211827',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('reconcile','2026-11-26 10:40:15.215749',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('refusals','2026-11-26 10:36:44.361573',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('rollups','2026-11-26 10:40:31.491346',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('tick','2026-11-26 10:40:36.263261',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('retention','2026-11-26 10:36:44.379465',0,0,'');
INSERT INTO "jobs_sweeprun" VALUES('lock_sync','2026-11-26 10:40:15.223072',4,0,'');
INSERT INTO "jobs_sweeprun" VALUES('generation','2026-11-26 10:40:36.213018',0,0,'');
CREATE TABLE "jobs_tally" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(40) NOT NULL, "model" varchar(64) NOT NULL, "code" varchar(64) NOT NULL, "count" bigint unsigned NOT NULL CHECK ("count" >= 0), CONSTRAINT "one_tally_each" UNIQUE ("name", "model", "code"));
INSERT INTO "jobs_tally" VALUES(1,'sweep_repairs','','generation',1);
INSERT INTO "jobs_tally" VALUES(2,'sweep_repairs','','mirror_registry',1);
INSERT INTO "jobs_tally" VALUES(3,'attempt_ends','zimg','completed/completed',5);
INSERT INTO "jobs_tally" VALUES(4,'attempt_ends','zimg','run_failed/failed',2);
INSERT INTO "jobs_tally" VALUES(5,'sweep_repairs','','rollups',12);
INSERT INTO "jobs_tally" VALUES(7,'attempt_ends','zimg','run_failed/retrying',2);
INSERT INTO "jobs_tally" VALUES(8,'sweep_repairs','','due_retries',2);
INSERT INTO "jobs_tally" VALUES(9,'sweep_repairs','','fill',1);
INSERT INTO "jobs_tally" VALUES(13,'pushes_refused','','attempt_over',1);
CREATE TABLE "jobs_tenant" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(64) NOT NULL UNIQUE, "weight" real NOT NULL, "webhook_secret_encrypted" text NOT NULL, "created_at" datetime NOT NULL, "allowed_models" text NULL CHECK ((JSON_VALID("allowed_models") OR "allowed_models" IS NULL)), "daily_gpu_seconds" real NULL, "max_queued" integer unsigned NULL CHECK ("max_queued" >= 0), "submit_burst" integer unsigned NULL CHECK ("submit_burst" >= 0), "submits_per_second" real NULL, "webhook_secret_before_encrypted" text DEFAULT '' NOT NULL, "webhook_secret_before_until" datetime NULL, "highest_band" varchar(6) DEFAULT 'normal' NOT NULL, "max_running" integer unsigned NULL CHECK ("max_running" >= 0), "max_queued_seconds" real NULL, CONSTRAINT "tenant_weight_is_positive" CHECK ("weight" > 0.0), CONSTRAINT "tenant_may_run_something" CHECK (("max_running" IS NULL OR "max_running" >= 1)), CONSTRAINT "tenant_band_is_known" CHECK ("highest_band" IN ('urgent', 'normal', 'bulk')));
INSERT INTO "jobs_tenant" VALUES(1,'operator',1.0,'','2026-11-26 10:36:40.062728',NULL,NULL,NULL,NULL,NULL,'',NULL,'urgent',NULL,NULL);
INSERT INTO "jobs_tenant" VALUES(2,'demo',1.0,'','2026-11-26 10:36:40.068131',NULL,NULL,NULL,NULL,NULL,'',NULL,'urgent',NULL,NULL);
CREATE TABLE "jobs_workersign" ("worker" varchar(200) NOT NULL PRIMARY KEY, "at" datetime NOT NULL, "cut_off" text NOT NULL CHECK ((JSON_VALID("cut_off") OR "cut_off" IS NULL)));
INSERT INTO "jobs_workersign" VALUES('vm:32691:R5PFJ8','2026-11-26 10:40:39.263586','[]');
CREATE TABLE "rest_framework_api_key_apikey" ("created" datetime NOT NULL, "name" varchar(50) NOT NULL, "revoked" bool NOT NULL, "expiry_date" datetime NULL, "hashed_key" varchar(150) NOT NULL, "prefix" varchar(8) NOT NULL UNIQUE, "id" varchar(150) NOT NULL PRIMARY KEY);
CREATE UNIQUE INDEX "auth_group_permissions_group_id_permission_id_0cd325b0_uniq" ON "auth_group_permissions" ("group_id", "permission_id");
CREATE INDEX "auth_group_permissions_group_id_b120cbf9" ON "auth_group_permissions" ("group_id");
CREATE INDEX "auth_group_permissions_permission_id_84c5c92e" ON "auth_group_permissions" ("permission_id");
CREATE UNIQUE INDEX "auth_user_groups_user_id_group_id_94350c0c_uniq" ON "auth_user_groups" ("user_id", "group_id");
CREATE INDEX "auth_user_groups_user_id_6a12ed8b" ON "auth_user_groups" ("user_id");
CREATE INDEX "auth_user_groups_group_id_97559544" ON "auth_user_groups" ("group_id");
CREATE UNIQUE INDEX "auth_user_user_permissions_user_id_permission_id_14a6b632_uniq" ON "auth_user_user_permissions" ("user_id", "permission_id");
CREATE INDEX "auth_user_user_permissions_user_id_a95ead1b" ON "auth_user_user_permissions" ("user_id");
CREATE INDEX "auth_user_user_permissions_permission_id_1fbb5f2c" ON "auth_user_user_permissions" ("permission_id");
CREATE INDEX "django_admin_log_content_type_id_c4bce8eb" ON "django_admin_log" ("content_type_id");
CREATE INDEX "django_admin_log_user_id_c564eba6" ON "django_admin_log" ("user_id");
CREATE INDEX "jobs_callbacktry_callback_id_44f7dfc2" ON "jobs_callbacktry" ("callback_id");
CREATE INDEX "jobs_apikey_created_d8506c2b" ON "jobs_apikey" ("created");
CREATE INDEX "jobs_apikey_tenant_id_68dd1884" ON "jobs_apikey" ("tenant_id");
CREATE INDEX "jobs_event_job_id_fd625fcd" ON "jobs_event" ("job_id");
CREATE INDEX "jobs_callback_job_id_102fabb4" ON "jobs_callback" ("job_id");
CREATE INDEX "callback_due_idx" ON "jobs_callback" ("next_at") WHERE "state" = 'pending';
CREATE INDEX "jobs_attempt_job_id_b587cf59" ON "jobs_attempt" ("job_id");
CREATE INDEX "attempt_of_slot_idx" ON "jobs_attempt" ("server", "slot", "started_at" DESC);
CREATE UNIQUE INDEX "one_live_attempt_per_slot" ON "jobs_attempt" ("server", "slot") WHERE "state" IN ('leased', 'sent', 'waiting');
CREATE UNIQUE INDEX "one_live_attempt_per_job" ON "jobs_attempt" ("job_id") WHERE "state" IN ('leased', 'sent', 'waiting');
CREATE INDEX "jobs_jobtag_job_id_50be51fb" ON "jobs_jobtag" ("job_id");
CREATE INDEX "jobs_purgeledger_tenant_id_590b49e3" ON "jobs_purgeledger" ("tenant_id");
CREATE INDEX "jobs_idempotencykey_job_id_fb52399a" ON "jobs_idempotencykey" ("job_id");
CREATE INDEX "jobs_idempotencykey_tenant_id_10392f13" ON "jobs_idempotencykey" ("tenant_id");
CREATE UNIQUE INDEX "django_content_type_app_label_model_76bd3d3b_uniq" ON "django_content_type" ("app_label", "model");
CREATE UNIQUE INDEX "auth_permission_content_type_id_codename_01ab375a_uniq" ON "auth_permission" ("content_type_id", "codename");
CREATE INDEX "auth_permission_content_type_id_2f476e4b" ON "auth_permission" ("content_type_id");
CREATE INDEX "gpus_modelconfig_pool_id_67cdef79" ON "gpus_modelconfig" ("pool_id");
CREATE INDEX "gpus_server_pool_id_587f9990" ON "gpus_server" ("pool_id");
CREATE INDEX "audit_target_idx" ON "gpus_auditentry" ("target", "id" DESC);
CREATE INDEX "audit_actor_idx" ON "gpus_auditentry" ("actor", "id" DESC);
CREATE INDEX "gpus_configversion_model_id_a0332dfa" ON "gpus_configversion" ("model_id");
CREATE TRIGGER gpus_auditentry_never_changed BEFORE UPDATE ON gpus_auditentry
BEGIN SELECT RAISE(ABORT, 'an audit entry is never changed'); END;
CREATE TRIGGER gpus_auditentry_never_deleted BEFORE DELETE ON gpus_auditentry
BEGIN SELECT RAISE(ABORT, 'an audit entry is never deleted'); END;
CREATE INDEX "gpus_quarantinedslot_server_id_38d7a1d9" ON "gpus_quarantinedslot" ("server_id");
CREATE INDEX "quarantine_open_idx" ON "gpus_quarantinedslot" ("freed_at", "probed_at");
CREATE INDEX "gpus_placement_model_id_67aee079" ON "gpus_placement" ("model_id");
CREATE INDEX "gpus_placement_server_id_1faf4388" ON "gpus_placement" ("server_id");
CREATE UNIQUE INDEX "one_open_quarantine_per_suspect" ON "gpus_quarantinedslot" ("server_id", "slot", "attempt_id") WHERE "freed_at" IS NULL;
CREATE INDEX "jobs_rollup_tenant_id_d93bcfd2" ON "jobs_rollup" ("tenant_id");
CREATE INDEX "attempt_error_idx" ON "jobs_attempt" ("error_code", "id" DESC) WHERE NOT ("error_code" = '');
CREATE INDEX "attempt_unusual_idx" ON "jobs_attempt" ("state", "id" DESC) WHERE "state" IN ('cancelled', 'lost');
CREATE INDEX "callback_undelivered_idx" ON "jobs_callback" ("state", "id" DESC) WHERE "state" IN ('gave_up', 'gone');
CREATE INDEX "jobs_apikey_rotated_to_id_3a0de646" ON "jobs_apikey" ("rotated_to_id");
CREATE INDEX "event_rare_idx" ON "jobs_event" ("type", "id" DESC) WHERE NOT ("type" IN ('accepted', 'completed', 'partial', 'progress', 'queued', 'started'));
CREATE INDEX "worker_sign_at_idx" ON "jobs_workersign" ("at");
CREATE INDEX "callback_queue_idx" ON "jobs_callback" ("tenant_id", "receiver", "next_at") WHERE "state" = 'pending';
CREATE INDEX "callback_no_queue_idx" ON "jobs_callback" ("next_at") WHERE ("receiver" IS NULL AND "state" = 'pending');
CREATE INDEX "callback_sending_idx" ON "jobs_callback" ("sending_until") WHERE "sending_until" IS NOT NULL;
CREATE INDEX "jobs_job_tenant_id_47fdbf2d" ON "jobs_job" ("tenant_id");
CREATE INDEX "job_of_tenant_idx" ON "jobs_job" ("tenant_id", "id" DESC);
CREATE INDEX "job_waiting_idx" ON "jobs_job" ("state", "pool", "place_us");
CREATE INDEX "job_of_model_idx" ON "jobs_job" ("model", "state");
CREATE INDEX "job_due_idx" ON "jobs_job" ("due_at") WHERE "state" = 'retrying';
CREATE INDEX "job_deadline_idx" ON "jobs_job" ("deadline_at") WHERE ("deadline_at" IS NOT NULL AND "finished_at" IS NULL);
CREATE INDEX "job_start_deadline_idx" ON "jobs_job" ("start_deadline_at") WHERE ("finished_at" IS NULL AND "start_deadline_at" IS NOT NULL AND "started_at" IS NULL);
CREATE INDEX "job_failure_kind_idx" ON "jobs_job" ("error_fingerprint", "model", "finished_at") WHERE ("dismissed_at" IS NULL AND "state" = 'failed');
CREATE INDEX "job_dead_letter_idx" ON "jobs_job" ("finished_at") WHERE ("dismissed_at" IS NULL AND "state" = 'failed');
CREATE INDEX "job_run_at_idx" ON "jobs_job" ("run_at") WHERE "state" = 'scheduled';
CREATE INDEX "job_unfinished_idx" ON "jobs_job" ("tenant_id", "state") WHERE "finished_at" IS NULL;
CREATE INDEX "job_queue_deadline_idx" ON "jobs_job" ("queue_deadline_at") WHERE ("finished_at" IS NULL AND "queue_deadline_at" IS NOT NULL);
CREATE INDEX "job_cancel_requested_idx" ON "jobs_job" ("cancel_requested_at") WHERE ("cancel_requested_at" IS NOT NULL AND "finished_at" IS NULL);
CREATE INDEX "sign_in_failure_last_idx" ON "jobs_signinfailure" ("last_at");
CREATE INDEX "rest_framework_api_key_apikey_created_c61872d9" ON "rest_framework_api_key_apikey" ("created");
CREATE INDEX "django_session_expire_date_a5c62663" ON "django_session" ("expire_date");
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('django_migrations',58);
INSERT INTO "sqlite_sequence" VALUES('django_admin_log',0);
INSERT INTO "sqlite_sequence" VALUES('jobs_jobtag',0);
INSERT INTO "sqlite_sequence" VALUES('jobs_purgeledger',0);
INSERT INTO "sqlite_sequence" VALUES('jobs_idempotencykey',0);
INSERT INTO "sqlite_sequence" VALUES('django_content_type',35);
INSERT INTO "sqlite_sequence" VALUES('auth_permission',141);
INSERT INTO "sqlite_sequence" VALUES('auth_group',2);
INSERT INTO "sqlite_sequence" VALUES('auth_user',1);
INSERT INTO "sqlite_sequence" VALUES('gpus_quarantinedslot',0);
INSERT INTO "sqlite_sequence" VALUES('gpus_placement',4);
INSERT INTO "sqlite_sequence" VALUES('jobs_tenant',2);
INSERT INTO "sqlite_sequence" VALUES('auth_group_permissions',79);
INSERT INTO "sqlite_sequence" VALUES('gpus_configversion',4);
INSERT INTO "sqlite_sequence" VALUES('gpus_auditentry',4);
INSERT INTO "sqlite_sequence" VALUES('jobs_tally',13);
INSERT INTO "sqlite_sequence" VALUES('jobs_event',131);
INSERT INTO "sqlite_sequence" VALUES('jobs_rollup',12);
INSERT INTO "sqlite_sequence" VALUES('jobs_callbacktry',3);
COMMIT;
