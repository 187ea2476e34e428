"""Statements of the hot path: written with the ORM, compiled once per database, then only executed.

Building and compiling a queryset costs ten times what SQLite needs to answer it, and PostgreSQL parses a text
that holds its values anew each time. Columns, converters and locks stay Django's: a statement here says what
the same queryset would say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

from django.db import DEFAULT_DB_ALIAS, NotSupportedError, connections
from django.db.backends.signals import connection_created
from django.db.models import AutoField, Expression, Field, Model, QuerySet
from django.db.models.constants import OnConflict
from django.db.models.sql import InsertQuery, UpdateQuery


class Value(Expression):
    """Stands in a queryset for a value that comes with each execution."""

    def __init__(self, name: str, field: Field[Any, Any]) -> None:
        super().__init__(output_field=field)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", [self]

    def prepared(self, value: Any, database: Any) -> Any:
        return self.output_field.get_db_prep_save(value, database)


def value(model: type[Model], field: str, name: str = "") -> Value:
    """A place for a value of this field, called `name` (or as the field)."""
    return Value(name or field, cast("Field[Any, Any]", model._meta.get_field(field)))


def summed(rows: QuerySet[Any, Any], /, **sums: Any) -> QuerySet[Any, Any]:
    """What `aggregate` would answer, as a queryset: one dict."""
    one: QuerySet[Any, Any] = rows.order_by().annotate(**sums).values(*sums)
    one.query.group_by = None
    return one


class Read:
    """rows: makes the queryset, with `Value` where values go; called once per kind of database."""

    def __init__(self, rows: Callable[[], QuerySet[Any, Any]]) -> None:
        self._rows = rows
        self._compiled: dict[str, tuple[str, tuple[Any, ...], list[Any], Callable[[list[Any]], Any]]] = {}

    def __call__(self, **values: Any) -> list[Any]:
        """What the queryset would give: model instances, dicts, tuples or flat values."""
        database = this_database()
        compiled = self._compiled.get(database.vendor)
        if compiled is None:
            compiled = self._compiled[database.vendor] = self._compile(database)
        sql, places, converters, build = compiled
        with execute(database, sql, fill(places, values, database)) as cursor:
            rows = [list(row) for row in cursor.fetchall()]
        for row in rows:
            for at, expression, convert in converters:
                row[at] = convert(row[at], expression, database)
        return [build(row) for row in rows]

    def first(self, **values: Any) -> Any:
        """The first row, or None."""
        return next(iter(self(**values)), None)

    def _compile(self, database: Any) -> tuple[str, tuple[Any, ...], list[Any], Callable[[list[Any]], Any]]:
        rows = self._rows()
        compiler = rows.query.get_compiler(connection=database)
        sql, places = compiler.as_sql()
        converters = [
            (at, expression, convert)
            for at, (converts, expression) in compiler.get_converters(
                [column[0] for column in compiler.select[: compiler.col_count]]
            ).items()
            for convert in converts
        ]
        return sql, tuple(places), converters, _builder(rows, compiler)


class ReadAmong:
    """A `Read` for some of many: rows is given as many places as there may be values."""

    def __init__(
        self, model: type[Model], field: str, rows: Callable[[list[Any]], QuerySet[Any, Any]]
    ) -> None:
        self._model, self._field, self._rows = model, field, rows
        self._reads: dict[int, Read] = {}

    def __call__(self, among: Sequence[Any], **values: Any) -> list[Any]:
        """Nothing for nothing. Places are made by powers of two: the last value fills what is left."""
        if not among:
            return []
        size = 1 << (len(among) - 1).bit_length()
        read = self._reads.get(size)
        if read is None:
            places = [value(self._model, self._field, str(place)) for place in range(size)]
            read = self._reads[size] = Read(lambda: self._rows(places))
        filled = [*among, *[among[-1]] * (size - len(among))]
        return read(**values, **{str(place): one for place, one in enumerate(filled)})


def insert(row: Model, *, ignore_conflicts: bool = False) -> bool:
    """Whether the row was inserted. A key that the database makes is not read back."""
    database = this_database()
    sql, fields = insert_sql(database.vendor, type(row), ignore_conflicts)
    with execute(database, sql, columns(row, fields, database)) as cursor:
        return bool(cursor.rowcount)


def update(row: Model, fields: Sequence[str]) -> bool:
    """Writes these fields (no relations) of a row that was read; whether it is still there."""
    return change(type(row), row.pk, {name: getattr(row, name) for name in fields})


def change(model: type[Model], pk: Any, fields: Mapping[str, Any], **only_if: Any) -> bool:
    """Sets these fields of the row, if the fields in `only_if` have these values; whether it was so."""
    database = this_database()
    sql, places = update_sql(database.vendor, model, tuple(fields), tuple(only_if))
    values = {"pk": pk, **{f"to {name}": value for name, value in fields.items()}, **only_if}
    with execute(database, sql, fill(places, values, database)) as cursor:
        return bool(cursor.rowcount)


_lent = threading.local()


def this_database() -> Any:
    """What was lent to this thread, else its own; itself: each look through Django's proxy costs as much as a
    value of a statement."""
    database = getattr(_lent, "database", None)
    return connections[DEFAULT_DB_ALIAS] if database is None else database


@contextmanager
def over(database: Any) -> Iterator[None]:
    """The block's statements of this module go over this connection."""
    _lent.database = database
    try:
        yield
    finally:
        _lent.database = None


def execute(database: Any, sql: str, values: Sequence[Any]) -> Any:
    """The cursor, open. PostgreSQL's is psycopg's own in place of Django's, which writes the values into the
    text: here they go beside it, and a statement that comes again and again is prepared by the server (unless
    the connection's `prepare_threshold` says never). Where queries are logged it is Django's: psycopg does
    not know the text of what the server has prepared."""
    if database.vendor == "postgresql" and not database.queries_logged:
        database.close_if_health_check_failed()
        database.ensure_connection()
        with database.wrap_database_errors:
            bare = database.Database.Cursor(database.connection)
        cursor = database.make_cursor(bare)
    else:
        cursor = database.cursor()
    try:
        cursor.execute(sql, values)
    except BaseException as error:
        cursor.close()
        if isinstance(error, NotSupportedError) and not database.in_atomic_block:
            # a column's type changed under a kept statement; a rollback would make psycopg forget it
            database.close()
        raise
    return cursor


def _plan_each_time(connection: Any, **_: Any) -> None:
    """What PostgreSQL keeps of a statement is its parsed text, never its plan: one made while a table was
    small reads all of it, and would stay, until the next look of autovacuum, while the table grows."""
    if connection.vendor == "postgresql" and connection.connection.prepare_threshold is not None:
        with connection.cursor() as cursor:
            cursor.execute("SET plan_cache_mode = force_custom_plan")


connection_created.connect(_plan_each_time, dispatch_uid="plan-each-time")


def columns(row: Model, fields: Sequence[Any], database: Any) -> list[Any]:
    return [field.get_db_prep_save(getattr(row, field.attname), database) for field in fields]


def fill(places: Sequence[Any], values: Mapping[str, Any], database: Any) -> list[Any]:
    return [
        place.prepared(values[place.name], database) if isinstance(place, Value) else place
        for place in places
    ]


def _builder(rows: QuerySet[Any, Any], compiler: Any) -> Callable[[list[Any]], Any]:
    names = [*rows.query.values_select, *rows.query.annotation_select]
    match rows._iterable_class.__name__:  # type: ignore[attr-defined]
        case "ModelIterable":
            names = [column[0].target.attname for column in compiler.select]
            return lambda columns: rows.model.from_db(DEFAULT_DB_ALIAS, names, columns)
        case "ValuesIterable":
            return lambda columns: dict(zip(names, columns, strict=True))
        case "ValuesListIterable":
            return tuple
        case "FlatValuesListIterable":
            return lambda columns: columns[0]
        case other:
            raise TypeError(f"no statement is made of {other}")


@cache
def insert_sql(vendor: str, model: type[Model], ignore_conflicts: bool) -> tuple[str, list[Any]]:
    fields = [field for field in model._meta.concrete_fields if not isinstance(field, AutoField)]
    options = {"on_conflict": OnConflict.IGNORE} if ignore_conflicts else {}
    query = InsertQuery(model, **options)
    query.insert_values(fields, [model()])
    compiler = query.get_compiler(connection=this_database())
    compiler.returning_fields = None
    [(sql, _)] = compiler.as_sql()
    return sql, fields


@cache
def update_sql(
    vendor: str, model: type[Model], fields: tuple[str, ...], only_if: tuple[str, ...]
) -> tuple[str, tuple[Any, ...]]:
    """As `QuerySet.update` on the row's key and `only_if` would say it."""
    conditions = {name: value(model, name) for name in only_if}
    found = model._default_manager.filter(pk=value(model, model._meta.pk.name, "pk"), **conditions)
    query: Any = found.query.chain(UpdateQuery)
    query.add_update_values({name: value(model, name, f"to {name}") for name in fields})
    sql, places = query.get_compiler(connection=this_database()).as_sql()
    return sql, tuple(places)
