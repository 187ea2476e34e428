"""Copies of the three large job tables, cut by the time in a job's id; and the removal of a part."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

FIRST, DAYS = datetime(2026, 6, 1, tzinfo=UTC), 30.0
"""As in `benchmarks.admin_lists_data`."""
KEYS = {"jobs_job": "id", "jobs_attempt": "job_id", "jobs_event": "job_id"}
SCHEMA = "parted"


def bounds_of(parts: int) -> list[str]:
    from foundation.ids import lowest_id

    return [lowest_id((FIRST + timedelta(days=DAYS * part / parts)).timestamp()) for part in range(parts)]


def make_partitions(cursor: Any, parts: int) -> list[str]:
    """Create copies of the three tables, cut by job; return the unique constraints that were lost."""
    lost = []
    bounds = bounds_of(parts)
    cursor.execute(f"CREATE SCHEMA {SCHEMA}")
    for table, key in KEYS.items():
        new = f"{SCHEMA}.{table}"
        cursor.execute(
            f"CREATE TABLE {new} (LIKE public.{table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
            f" PARTITION BY RANGE ({key})"
        )
        for part, bound in enumerate(bounds):
            low = "MINVALUE" if part == 0 else f"'{bound}'"
            high = f"'{bounds[part + 1]}'" if part + 1 < parts else "MAXVALUE"
            cursor.execute(
                f"CREATE TABLE {new}_{part} PARTITION OF {new} FOR VALUES FROM ({low}) TO ({high})"
            )
        if table == "jobs_event":
            cursor.execute(f"CREATE SEQUENCE {SCHEMA}.event_ids START 1000000000")
            cursor.execute(f"ALTER TABLE {new} ALTER id SET DEFAULT nextval('{SCHEMA}.event_ids')")
        cursor.execute(f"INSERT INTO {new} SELECT * FROM public.{table}")
        lost += _make_indexes(cursor, table, key)
    cursor.execute(
        f"ALTER TABLE {SCHEMA}.jobs_job ADD FOREIGN KEY (tenant_id) REFERENCES public.jobs_tenant (id)"
        " DEFERRABLE INITIALLY DEFERRED"
    )
    for table in ("jobs_attempt", "jobs_event"):
        cursor.execute(
            f"ALTER TABLE {SCHEMA}.{table} ADD FOREIGN KEY (job_id) REFERENCES {SCHEMA}.jobs_job (id)"
            " DEFERRABLE INITIALLY DEFERRED"
        )
    cursor.execute(f"ANALYZE {', '.join(f'{SCHEMA}.{table}' for table in KEYS)}")
    return lost


def _make_indexes(cursor: Any, table: str, key: str) -> list[str]:
    cursor.execute(
        "SELECT i.relname, pg_get_indexdef(x.indexrelid), x.indisunique, x.indisprimary,"
        " array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = x.indexrelid ORDER BY a.attnum)"
        " FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = %s::regclass",
        [f"public.{table}"],
    )
    lost = []
    for name, definition, is_unique, is_primary, columns in cursor.fetchall():
        sql = definition.replace(f" ON public.{table} ", f" ON {SCHEMA}.{table} ")
        if is_unique and key not in columns:
            lost.append(f"{table}: {name} ({', '.join(columns)})")
            sql = sql.replace("CREATE UNIQUE INDEX", "CREATE INDEX")
        if is_primary and key in columns:
            sql = f"ALTER TABLE {SCHEMA}.{table} ADD PRIMARY KEY ({', '.join(columns)})"
        cursor.execute(sql)
    return lost


def drop_first_part(cursor: Any) -> dict[str, int]:
    """Drop the first part as retention would have to; return counts.

    Removed jobs are counted for the ledger; jobs that must stay (dead letters that were not dismissed, and
    unfinished ones) move into another part."""
    kept = "state NOT IN ('completed', 'failed', 'cancelled') OR (state = 'failed' AND dismissed_at IS NULL)"
    jobs = f"{SCHEMA}.jobs_job_0"
    cursor.execute("BEGIN")
    cursor.execute(f"SELECT tenant_id, state, count(*) FROM {jobs} WHERE NOT ({kept}) GROUP BY 1, 2")
    removed = sum(count for _, _, count in cursor.fetchall())
    cursor.execute(f"CREATE TEMP TABLE stays ON COMMIT DROP AS SELECT id FROM {jobs} WHERE {kept}")
    moved = 0
    for table, key in KEYS.items():
        cursor.execute(
            f"CREATE TEMP TABLE stays_{table} ON COMMIT DROP AS SELECT * FROM {SCHEMA}.{table}_0"
            f" WHERE {key} IN (SELECT id FROM stays)"
        )
        moved += cursor.rowcount
    for table in reversed(KEYS):
        cursor.execute(f"ALTER TABLE {SCHEMA}.{table} DETACH PARTITION {SCHEMA}.{table}_0")
        cursor.execute(f"DROP TABLE {SCHEMA}.{table}_0")
    for table in KEYS:
        new = f"{SCHEMA}.{table}"
        cursor.execute(f"CREATE TABLE {new}_kept PARTITION OF {new} DEFAULT")
        cursor.execute(f"INSERT INTO {new} SELECT * FROM stays_{table}")
    cursor.execute("COMMIT")
    return {"removed": removed, "moved": moved}
