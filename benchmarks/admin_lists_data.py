"""A million jobs of thirty days with what belongs to them, made by PostgreSQL itself (`generate_series`)."""

from __future__ import annotations

import json
from typing import Any

from django.db import connection, transaction
from django.db.models import Model

from gpus.models import AuditEntry, ModelConfig, Pool, Server
from jobs.models import (
    Attempt,
    Callback,
    CallbackTry,
    Event,
    IdempotencyKey,
    Job,
    JobTag,
    Tenant,
)

TENANTS, MODELS, SERVERS = 200, 20, 40
_DAYS = 30
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_FUNCTIONS = f"""
CREATE OR REPLACE FUNCTION bench_at(n bigint, total bigint) RETURNS timestamptz IMMUTABLE LANGUAGE sql AS $$
  SELECT timestamptz '2026-06-01' + (n::float8 / total) * interval '{_DAYS} days' $$;
CREATE OR REPLACE FUNCTION bench_one_in(many int, salt text) RETURNS boolean IMMUTABLE LANGUAGE sql AS $$
  SELECT abs(hashtext(salt)::bigint) % many = 0 $$;
CREATE OR REPLACE FUNCTION bench_id(at timestamptz, salt text) RETURNS text IMMUTABLE LANGUAGE sql AS $$
  SELECT {
    " || ".join(
        f"substr('{_ALPHABET}', ((((extract(epoch from at) * 1000)::bigint >> {shift}) & 31) + 1)::int, 1)"
        for shift in range(45, -5, -5)
    )
} || upper(substr(md5(salt), 1, 16)) $$;
"""
# of a thousand jobs: 940 completed, 50 failed, 10 cancelled; the last 2,300 are still alive
_STATE = """CASE WHEN n > {total} - 64 THEN 'running' WHEN n > {total} - 2064 THEN 'queued'
  WHEN n > {total} - 2300 THEN 'retrying' WHEN n % 1000 < 50 THEN 'failed'
  WHEN n % 1000 < 60 THEN 'cancelled' ELSE 'completed' END"""
_ERROR = """CASE WHEN n % 1000 >= 50 OR n > {total} - 2300 THEN '' WHEN n % 200000 = 7 THEN 'poison'
  WHEN n % 1000 < 25 THEN 'server_error' WHEN n % 1000 < 40 THEN 'timeout' ELSE 'bad_input' END"""


def fill(jobs: int) -> None:
    """Fill an empty, migrated database, in one transaction."""
    with transaction.atomic():
        _fill(jobs)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _fill(jobs: int) -> None:
    pools = [Pool.objects.get_or_create(name=f"model-{number}")[0] for number in range(MODELS)]
    for number, pool in enumerate(pools):
        ModelConfig.objects.get_or_create(name=pool.name, defaults={"pool": pool})
        for which in range(SERVERS // MODELS):
            Server.objects.get_or_create(name=f"server-{number}-{which}", defaults={"pool": pool, "slots": 8})
    Tenant.objects.bulk_create(Tenant(name=f"tenant-{n}") for n in range(TENANTS))
    first_tenant = Tenant.objects.order_by("pk").values_list("pk", flat=True)[0]
    with connection.cursor() as cursor:
        cursor.execute(_FUNCTIONS)
        cursor.execute("SET LOCAL session_replication_role = replica")  # foreign keys hold by construction
        indexes = _drop_indexes(cursor)
        _jobs(cursor, jobs, first_tenant)
        _rest(cursor, jobs)
        for definition in indexes:
            cursor.execute(definition)


def _drop_indexes(cursor: Any) -> list[str]:
    """Drop indexes that are no constraints, since building one is much faster than keeping it; return how to
    create them."""
    cursor.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename LIKE 'jobs_%'"
        " AND indexname NOT IN (SELECT conname FROM pg_constraint)"
    )
    found = cursor.fetchall()
    for name, _ in found:
        cursor.execute(f'DROP INDEX "{name}"')
    return [definition for _, definition in found]


def _jobs(cursor: Any, total: int, first_tenant: int) -> None:
    state, error = _STATE.format(total=total), _ERROR.format(total=total)
    over = "state IN ('completed', 'failed', 'cancelled')"
    source = f"""(SELECT n, bench_at(n, {total}) AS at, bench_id(bench_at(n, {total}), 'job' || n) AS id,
      {state} AS state, {error} AS error FROM generate_series(1, {total}) AS n) AS made"""
    _insert(
        cursor, Job, source,
        id="id", tenant_id=f"{first_tenant} + (n::bigint * n % {TENANTS})", model=f"'model-' || n % {MODELS}",
        pool=f"'model-' || n % {MODELS}", state="state", error_code="error",
        error_message="CASE error WHEN '' THEN '' ELSE 'what went wrong with run ' || n END",
        error_fingerprint="CASE state WHEN 'failed' THEN substr(md5(error || n % 40), 1, 16) ELSE '' END",
        payload="""jsonb_build_object('prompt', repeat('a sunset over the sea ', 15), 'seed', n)""",
        result="""CASE state WHEN 'completed' THEN jsonb_build_object('url', 's3://' || id,
          'trace', repeat(md5(id), 16)) END""",
        tags="CASE WHEN n % 5 = 0 THEN jsonb_build_array('night') ELSE '[]'::jsonb END",
        callback_url="CASE WHEN n % 2 = 0 THEN 'https://hooks.example.com/gpu' ELSE '' END",
        place_us="(extract(epoch FROM at) * 1000000)::bigint", created_at="at",
        started_at=f"CASE WHEN {over} OR state = 'running' THEN at + interval '3 seconds' END",
        finished_at=f"CASE WHEN {over} THEN at + interval '20 seconds' END",
        due_at="CASE state WHEN 'retrying' THEN at + interval '1 hour' END",
        dismissed_at="CASE WHEN state = 'failed' AND n % 5 < 2 THEN at + interval '1 day' END",
        live_attempt="CASE state WHEN 'running' THEN bench_id(at, 'attempt2' || id) END",
        attempts_made="2", event_seq="4",
    )  # fmt: skip


def _rest(cursor: Any, total: int) -> None:
    per_job = "(SELECT * FROM jobs_job, generate_series(1, {}) AS number) AS made"
    live = "(number = 2 AND state = 'running')"
    _insert(
        cursor, Attempt, per_job.format(2),
        id="bench_id(created_at, 'attempt' || number || id)", job_id="id", number="number",
        state=f"""CASE WHEN {live} THEN 'sent' WHEN number = 2 AND state = 'completed' THEN 'completed'
          WHEN number = 1 AND random() < 0.5 THEN 'refused' ELSE 'failed' END""",
        server=f"""'server-' || substr(model, 7) || '-' || CASE WHEN {live} THEN 0
          ELSE (place_us / 1000 % {SERVERS // MODELS}) END""",
        slot=f"CASE WHEN {live} THEN place_us % 1000000000 ELSE place_us / 1000 % 8 END", model="model",
        error_code="""CASE WHEN number = 2 THEN error_code WHEN bench_one_in(40000, id) THEN 'gpu_fault'
          ELSE 'busy' END""",
        started_at="created_at + number * interval '3 seconds'",
        finished_at=f"CASE WHEN {live} THEN NULL ELSE created_at + number * interval '9 seconds' END",
    )  # fmt: skip
    types = "(ARRAY['queued', 'started', 'retrying', 'completed'])[number]"
    _insert(
        cursor, Event, per_job.format(4), skip=("id",), job_id="id", seq="number",
        type=f"CASE WHEN number = 3 AND bench_one_in(60000, id) THEN 'adopted' ELSE {types} END",
        at="created_at + number * interval '4 seconds'", data="jsonb_build_object('attempt', number)",
    )  # fmt: skip
    _insert(
        cursor, Callback,
        "(SELECT * FROM jobs_job WHERE callback_url <> '' AND finished_at IS NOT NULL) AS made",
        id="'msg_' || bench_id(finished_at, 'msg' || id)", job_id="id", url="callback_url",
        body="jsonb_build_object('job_id', id, 'trace', repeat(md5(id), 16))::text",
        state="""CASE WHEN bench_one_in(500, 'a' || id) THEN 'gave_up' WHEN bench_one_in(2000, id) THEN 'gone'
          WHEN bench_one_in(1500, 'b' || id) THEN 'pending' ELSE 'delivered' END""",
        tries="1", created_at="finished_at",
        next_at="CASE WHEN bench_one_in(1500, 'b' || id) THEN finished_at + interval '1 hour' END",
        delivered_at="finished_at",
    )  # fmt: skip
    _insert(
        cursor, CallbackTry, "jobs_callback", skip=("id",), callback_id="id", number="1", at="created_at",
        status_code="200", duration_ms="30",
    )  # fmt: skip
    tagged = (
        "(SELECT id, 'night' AS tag FROM jobs_job WHERE tags <> '[]'::jsonb UNION ALL "
        "SELECT id, 'rare' FROM jobs_job WHERE bench_one_in(50000, id)) AS made"
    )
    _insert(cursor, JobTag, tagged, skip=("id",), job_id="id", tag="tag")
    _insert(
        cursor, IdempotencyKey, "(SELECT * FROM jobs_job WHERE bench_one_in(10, id)) AS made", skip=("id",),
        tenant_id="tenant_id", key="'order-' || id", fingerprint="repeat('f', 64)", job_id="id",
    )  # fmt: skip
    _insert(
        cursor, AuditEntry, f"generate_series(1, {total // 10}) AS n", skip=("id",),
        at=f"bench_at(n, {total // 10})", actor="'user:' || (ARRAY['boss', 'ann', 'bob'])[n % 3 + 1]",
        action="(ARRAY['retry_dead_letter', 'cancel_job', 'switch_server'])[n % 3 + 1]",
        target="CASE WHEN n % 3 = 2 THEN 'server:server-1-1' ELSE 'job:' || md5(n::text) END",
        detail="'{}'::jsonb",
    )  # fmt: skip


def _insert(cursor: Any, rows: type[Model], source: str, /, skip: tuple[str, ...] = (), **given: str) -> None:
    """given: SQL by column; other columns get their field's default. skip: columns that the database
    fills."""
    columns = dict(given)
    for field in rows._meta.concrete_fields:
        if field.attname not in columns and field.attname not in skip:
            columns[field.attname] = _literal(field)
    names = ", ".join(f'"{name}"' for name in columns)
    cursor.execute(
        f'INSERT INTO "{rows._meta.db_table}" ({names}) SELECT {", ".join(columns.values())} FROM {source}'
    )


def _literal(field: Any) -> str:
    value = field.get_default()
    if value is None:
        return "NULL"
    if isinstance(value, (dict, list)):
        return f"'{json.dumps(value)}'::jsonb"
    return str(value).lower() if isinstance(value, (bool, int, float)) else f"'{value}'"
