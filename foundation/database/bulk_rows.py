"""Many rows in one statement, whatever their number: one text to know, one to execute.

PostgreSQL is given the rows as one value, a JSON array, and takes them apart itself: with a place for each
column of each row every number of rows would be another statement, and handing over the values would cost
more than writing them. SQLite, which is no journey away, is given them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from django.db.models import AutoField, Model

from foundation import json_text
from foundation.database.row_codec import columns
from foundation.database.statements import (
    execute,
    execute_all,
    insert_sql,
    this_database,
    update_by_key_sql,
)

Statement = tuple[str, Sequence[Any]]
"""A text with its values."""
MOST_ROWS = 64
MOST_PLACES = 60_000
"""Of SQLite's insert."""


def insert_all(rows: Sequence[Model]) -> None:
    """Of one kind, in order; keys that the database makes are not read back. Raises IntegrityError where one
    of them can't be: then none is."""
    write(inserts(rows))


def inserts(rows: Sequence[Model]) -> list[Statement]:
    """What `insert_all` executes. To convert the values of a thousand rows takes several times as long as
    SQLite takes to store them: it can be done before a transaction that others wait for."""
    if not rows:
        return []
    if this_database().vendor == "postgresql":
        return [_with_json(_json_insert(type(rows[0])), rows)]
    return list(_inserts_by_places(rows))


def write(statements: Sequence[Statement]) -> None:
    for sql, values in statements:
        execute(this_database(), sql, values)


def put_all(rows: Sequence[Model]) -> None:
    """Inserts these rows, or writes them over those with their keys; no key twice."""
    if not rows:
        return
    database, model = this_database(), type(rows[0])
    if database.vendor == "postgresql":
        sql, names = _json_insert(model)
        write([_with_json((sql + _or_over(model), names), rows)])
        return
    sql, plan = insert_sql(database.vendor, model, ignore_conflicts=False)
    execute_all(database, sql + _or_over(model), [columns([row], plan, database) for row in rows])


def update_all(rows: Sequence[Model], fields: Sequence[str]) -> None:
    """Writes these fields (no relations) of rows of one kind that were read; what is gone stays gone."""
    if not rows:
        return
    model, database = type(rows[0]), this_database()
    if database.vendor == "postgresql":
        write([_with_json(_json_update(model, tuple(fields)), rows)])
        return
    sql, plan = update_by_key_sql(database.vendor, model, tuple(fields))
    execute_all(database, sql, [columns([row], plan, database) for row in rows])


def _with_json(statement: tuple[str, tuple[tuple[str, str], ...]], rows: Sequence[Model]) -> Statement:
    sql, names = statement
    said = [{column: getattr(row, name) for column, name in names} for row in rows]
    text = json_text.dumps(said, default=_as_text)
    return sql, (text, len(rows))


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} is no value of a column")


@cache
def _json_insert(model: type[Model]) -> tuple[str, tuple[tuple[str, str], ...]]:
    fields: list[Any] = [f for f in model._meta.concrete_fields if not isinstance(f, AutoField)]
    listed = ", ".join(f'"{field.column}"' for field in fields)
    sql = f'INSERT INTO "{model._meta.db_table}" ({listed}) SELECT {listed} FROM {_given(fields)}'
    return sql, tuple((field.column, field.attname) for field in fields)


@cache
def _json_update(model: type[Model], names: tuple[str, ...]) -> tuple[str, tuple[tuple[str, str], ...]]:
    table, key = model._meta.db_table, model._meta.pk
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    to = ", ".join(f'"{field.column}" = given."{field.column}"' for field in fields)
    sql = (
        f'UPDATE "{table}" SET {to} FROM {_given([key, *fields])} '
        f'WHERE "{table}"."{key.column}" = given."{key.column}"'
    )
    return sql, tuple((field.column, field.attname) for field in (key, *fields))


@cache
def _or_over(model: type[Model]) -> str:
    key: Any = model._meta.pk
    others = [field.column for field in model._meta.concrete_fields if field is not key]
    to = ", ".join(f'"{column}" = excluded."{column}"' for column in others)
    return f' ON CONFLICT ("{key.column}") DO UPDATE SET {to}'


def _given(fields: Sequence[Any]) -> str:
    """The limit tells the planner how many there are: it would guess a hundred, and read a table whole."""
    types = ", ".join(f'"{field.column}" {field.db_type(this_database())}' for field in fields)
    return f"(SELECT * FROM json_to_recordset(%s::json) AS row({types}) LIMIT %s::int) AS given"


def _inserts_by_places(rows: Sequence[Model]) -> Iterator[Statement]:
    """As many at once as go into one statement, by powers of two: so there are few texts to compile."""
    database = this_database()
    sql, plan = insert_sql(database.vendor, type(rows[0]), ignore_conflicts=False)
    head, values, places = sql.partition(" VALUES ")
    at_most = min(MOST_ROWS, (database.features.max_query_params or MOST_PLACES) // len(plan))
    first = 0
    while first < len(rows):
        count = 1 << (min(len(rows) - first, at_most).bit_length() - 1)
        some = rows[first : first + count]
        yield head + values + ", ".join([places] * count), columns(some, plan, database)
        first += count
