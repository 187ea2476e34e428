"""Precompiled statements of the hot path: written with the ORM, compiled once per database, then only
executed; and bulk statements for any number of rows.

Building and compiling a queryset costs ten times what SQLite needs to answer it, and PostgreSQL parses a text
that contains its values each time. Columns, converters and locks stay Django's: a statement here has the SQL
of the same queryset.

PostgreSQL gets many rows as one value, a JSON array, and unpacks it itself: with a parameter for each column
of each row every number of rows would be another statement, and passing the values would cost more than
writing them. SQLite, which needs no round trip, gets them one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache, partial
from typing import Any, cast

from django.db import DEFAULT_DB_ALIAS, NotSupportedError, connections
from django.db.backends.signals import connection_created
from django.db.models import AutoField, Expression, F, Field, Func, JSONField, Model, QuerySet
from django.db.models.constants import OnConflict
from django.db.models.sql import InsertQuery, UpdateQuery

from foundation import json_text
from foundation.database.row_codec import Column, column_of, columns, converted, fast_converter, row_builder

Statement = tuple[str, Sequence[Any]]
"""SQL and its values."""
MAX_ROWS = 64
MAX_KEYS = 512
"""Keys of one delete."""
MAX_PARAMETERS = 60_000
"""Parameters of one SQLite insert."""


class Value(Expression):
    """A parameter in a queryset; its value is given at each execution."""

    def __init__(self, name: str, field: Field[Any, Any]) -> None:
        super().__init__(output_field=field)
        self.name = name

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, Any]:
        return "%s", [self]

    def column(self, vendor: str) -> Column:
        """Return its column, under the name of the parameter."""
        return column_of(self.output_field, vendor)._replace(name=self.name)


@dataclass(frozen=True, slots=True)
class Members:
    """Members to set in the JSON object of a column, which keeps its others. None may be null."""

    of: Mapping[str, Any]


class _WithMembers(Func):
    output_field = JSONField()
    arg_joiner = " || "
    template = "%(expressions)s"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="json_patch(%(expressions)s)", arg_joiner=", ")


def value(model: type[Model], field: str, name: str = "") -> Value:
    """Return a parameter for a value of this field. name: default the field's."""
    return Value(name or field, cast("Field[Any, Any]", model._meta.get_field(field)))


def summed(rows: QuerySet[Any, Any], /, **sums: Any) -> QuerySet[Any, Any]:
    """Return a queryset with one dict, equivalent to `aggregate`."""
    one: QuerySet[Any, Any] = rows.order_by().annotate(**sums).values(*sums)
    one.query.group_by = None
    return one


class Read:
    """A precompiled read. rows: returns the queryset, with `Value` for parameters; called once per database
    vendor."""

    def __init__(self, rows: Callable[[], QuerySet[Any, Any]]) -> None:
        self._rows = rows
        self._compiled: dict[str, tuple[str, tuple[Any, ...], list[Any], Callable[[list[Any]], Any]]] = {}

    def __call__(self, **values: Any) -> list[Any]:
        """Return the queryset's values: model instances, dicts, tuples or flat values. values: by parameter
        name."""
        database = this_database()
        compiled = self._compiled.get(database.vendor)
        if compiled is None:
            compiled = self._compiled[database.vendor] = self._compile(database)
        sql, places, converters, build = compiled
        rows = [list(row) for row in _fetch(database, sql, fill(places, values, database))]
        for row in rows:
            for at, expression, convert in converters:  # converters leave None as it is
                if row[at] is not None:
                    row[at] = convert(row[at], expression, database)
        return [build(row) for row in rows]

    def first(self, **values: Any) -> Any:
        """Return the first row, or None."""
        return next(iter(self(**values)), None)

    def _compile(self, database: Any) -> tuple[str, tuple[Any, ...], list[Any], Callable[[list[Any]], Any]]:
        rows = self._rows()
        compiler = rows.query.get_compiler(connection=database)
        sql, places = _inline_constants(database, *compiler.as_sql())
        converters = [
            (at, expression, fast_converter(convert, database))
            for at, (converts, expression) in compiler.get_converters(
                [column[0] for column in compiler.select[: compiler.col_count]]
            ).items()
            for convert in converts
        ]
        return sql, _columns_of(places, database.vendor), converters, row_builder(rows, compiler)


class AnyRow:
    """A precompiled question whether there is a row. rows: as of `Read`; their order does not matter."""

    def __init__(self, rows: Callable[[], QuerySet[Any, Any]]) -> None:
        self.read = Read(lambda: rows().order_by().values_list("pk", flat=True)[:1])

    def __call__(self, **values: Any) -> bool:
        return bool(self.read(**values))


class ReadAmong:
    """A `Read` with ``IN`` over one or several fields. rows: called with a list of parameters for each
    field."""

    def __init__(self, *fields: tuple[type[Model], str], rows: Callable[..., QuerySet[Any, Any]]) -> None:
        self._fields, self._rows = fields, rows
        self._reads: dict[int, Read] = {}

    def __call__(self, *among: Sequence[Any], **values: Any) -> list[Any]:
        """Return the rows; none if all of `among` are empty, otherwise each needs at least one value.

        The number of parameters is rounded up to a power of two, and the last value repeated."""
        most = max(map(len, among))
        if not most:
            return []
        size = 1 << (most - 1).bit_length()
        read = self._reads.get(size)
        if read is None:
            read = self._reads[size] = Read(partial(self._of_size, size))
        for at, some in enumerate(among):
            filled = [*some, *[some[-1]] * (size - len(some))]
            values |= {f"{at} {place}": one for place, one in enumerate(filled)}
        return read(**values)

    def _of_size(self, size: int) -> QuerySet[Any, Any]:
        return self._rows(
            *(
                [value(model, field, f"{at} {place}") for place in range(size)]
                for at, (model, field) in enumerate(self._fields)
            )
        )


def insert(row: Model, *, ignore_conflicts: bool = False) -> bool:
    """Insert a row; return whether it was inserted. An automatic key is not read back."""
    database = this_database()
    sql, plan = insert_sql(database.vendor, type(row), ignore_conflicts)
    return bool(execute(database, sql, columns([row], plan, database)))


def update(row: Model, fields: Sequence[str]) -> bool:
    """Write these fields (no relations) of a row that was read; return whether the row still exists."""
    database = this_database()
    sql, plan = update_by_key_sql(database.vendor, type(row), tuple(fields))
    return bool(execute(database, sql, columns([row], plan, database)))


def change(model: type[Model], fields: Mapping[str, Any], **of: Any) -> bool:
    """Set these fields of the rows that match `of`; return whether there was one. A field's value may be
    `Members`.

    In a pipeline (`foundation.database.connections`) the return value is not known yet."""
    database = this_database()
    return bool(execute(database, *_change(database, model, fields, of)))


def compare_and_set(model: type[Model], fields: Mapping[str, Any], **of: Any) -> bool:
    """Do as `change`; in a pipeline, wait for the return value."""
    database = this_database()
    sql, values = _change(database, model, fields, of)
    if database.vendor != "postgresql":
        return bool(execute(database, sql, values))
    return bool(_fetch(database, f"{sql} RETURNING 1", values))


def _change(database: Any, model: type[Model], fields: Mapping[str, Any], of: Mapping[str, Any]) -> Statement:
    parts = frozenset(name for name, value in fields.items() if type(value) is Members)
    sql, places = update_sql(database.vendor, model, tuple(fields), tuple(of), parts)
    values = {f"to {name}": value.of if name in parts else value for name, value in fields.items()}
    return sql, fill(places, {**values, **of}, database)


def insert_all(rows: Sequence[Model]) -> None:
    """Insert rows of one model, in order; automatic keys are not read back.

    Raises IntegrityError if one can't be inserted: then none is."""
    write(inserts(rows))


def inserts(rows: Sequence[Model]) -> list[Statement]:
    """Return the statements that `insert_all` executes.

    Converting the values of a thousand rows takes several times as long as SQLite takes to store them: it can
    be done before a transaction that others wait for."""
    if not rows:
        return []
    if this_database().vendor == "postgresql":
        return [_with_json(_json_insert(type(rows[0])), rows)]
    return list(_multi_row_inserts(rows))


def write(statements: Sequence[Statement]) -> None:
    """Execute these statements."""
    for sql, values in statements:
        execute(this_database(), sql, values)


def upsert_all(rows: Sequence[Model]) -> None:
    """Insert these rows, or overwrite those with the same keys; no key may occur twice."""
    if not rows:
        return
    database, model = this_database(), type(rows[0])
    if database.vendor == "postgresql":
        sql, names = _json_insert(model)
        write([_with_json((sql + _upsert_clause(model), names), rows)])
        return
    sql, plan = insert_sql(database.vendor, model, ignore_conflicts=False)
    execute_all(database, sql + _upsert_clause(model), [columns([row], plan, database) for row in rows])


def update_all(rows: Sequence[Model], fields: Sequence[str]) -> None:
    """Update these fields (no relations) of rows of one model; a row that was deleted meanwhile is
    skipped."""
    if not rows:
        return
    model, database = type(rows[0]), this_database()
    if database.vendor == "postgresql":
        write([_with_json(_json_update(model, tuple(fields)), rows)])
        return
    sql, plan = update_by_key_sql(database.vendor, model, tuple(fields))
    execute_all(database, sql, [columns([row], plan, database) for row in rows])


def delete_all(model: type[Model], keys: Sequence[Any]) -> None:
    """Delete the rows with these keys, of a model whose rows no others refer to."""
    left = list(keys)
    while left:
        some, left = left[:MAX_KEYS], left[MAX_KEYS:]
        size = 1 << (len(some) - 1).bit_length()  # few statements to prepare
        places = ", ".join(["%s"] * size)
        sql = f'DELETE FROM "{model._meta.db_table}" WHERE "{model._meta.pk.column}" IN ({places})'
        execute(this_database(), sql, [*some, *[some[-1]] * (size - len(some))])


# of the thread, like its database connection
_lent = threading.local()


def this_database() -> Any:
    """Return the connection that `use_connection` set for this thread, else the thread's own.

    Not Django's proxy: each access through it costs as much as one value of a statement."""
    lend = getattr(_lent, "lend", None)
    return connections[DEFAULT_DB_ALIAS] if lend is None else lend()


@contextmanager
def use_connection(lend: Callable[[], Any]) -> Iterator[None]:
    """Execute the block's statements of this module on the connection that `lend` returns when first
    called."""
    before, _lent.lend = getattr(_lent, "lend", None), lend
    try:
        yield
    finally:
        _lent.lend = before


def execute(database: Any, sql: str, values: Sequence[Any]) -> int:
    """Execute a statement; return the number of affected rows."""
    cursor = _executed(database, sql, values)
    try:
        return int(cursor.rowcount)
    finally:
        cursor.close()


def execute_all(database: Any, sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Execute a statement once for each row of values."""
    _executed(database, sql, rows, many=True).close()


def _fetch(database: Any, sql: str, values: Sequence[Any]) -> list[Any]:
    cursor = _executed(database, sql, values)
    try:
        with database.wrap_database_errors:  # SQLite searches for a row when it is fetched
            return list(cursor.fetchall())
    finally:
        cursor.close()


def _executed(database: Any, sql: str, values: Sequence[Any], *, many: bool = False) -> Any:
    """Return the open cursor of an executed statement.

    On PostgreSQL the cursor is psycopg's own instead of Django's, which writes values into the SQL: here they
    are sent separately, and the server prepares a repeated statement (unless the connection's
    `prepare_threshold` is None). If queries are logged it is Django's: psycopg does not know the text of a
    prepared statement. On SQLite it is also the driver's own: Django's parses the SQL for parameters at each
    execution.
    """
    if database.queries_logged:
        cursor = wrapped = database.cursor()
    else:
        database.close_if_health_check_failed()
        if database.connection is None:
            database.ensure_connection()
        with database.wrap_database_errors:
            is_sqlite = database.vendor == "sqlite"
            cursor = database.driver_cursor() if is_sqlite else database.Database.Cursor(database.connection)
        wrapped = database.make_cursor(cursor) if database.execute_wrappers else None
        if is_sqlite:
            sql = _with_question_marks(sql)
    try:
        if wrapped is not None:
            (wrapped.executemany if many else wrapped.execute)(sql, values)
        else:
            database.validate_no_broken_transaction()
            with database.wrap_database_errors:
                (cursor.executemany if many else cursor.execute)(sql, values)
    except BaseException as error:
        with suppress(database.Database.Error):  # of a closed connection: it would hide the first error
            cursor.close()
        if isinstance(error, NotSupportedError) and not database.in_atomic_block:
            # a column's type has changed under a prepared statement; a rollback would make psycopg drop it
            database.close()
        raise
    return cursor


@lru_cache(maxsize=4096)
def _with_question_marks(sql: str) -> str:
    """Convert parameters as Django's SQLite cursor does."""
    return sql.replace("%%", "\0").replace("%s", "?").replace("\0", "%")


def _disable_generic_plans(connection: Any, **_: Any) -> None:
    """Let PostgreSQL plan prepared statements at each execution.

    A plan made while a table was small reads the whole table, and would stay until the next autovacuum while
    the table grows."""
    if connection.vendor == "postgresql" and connection.connection.prepare_threshold is not None:
        with connection.cursor() as cursor:
            cursor.execute("SET plan_cache_mode = force_custom_plan")


connection_created.connect(_disable_generic_plans, dispatch_uid="plan-each-time")


def _inline_constants(database: Any, sql: str, places: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Write constants into SQLite's text.

    SQLite compares a bound value with the conditions of partial indexes, and recompiles the statement for
    each new value."""
    if database.vendor != "sqlite":
        return sql, tuple(places)
    literals = [None if isinstance(place, Value) else _constant(place) for place in places]
    inlined = tuple("%s" if one is None else one.replace("%", "%%") for one in literals)
    text = sql.replace("%%", "%%%%") % inlined
    return text, tuple(place for place, one in zip(places, literals, strict=True) if one is None)


def _columns_of(places: Sequence[Any], vendor: str) -> tuple[Any, ...]:
    return tuple(place.column(vendor) if isinstance(place, Value) else place for place in places)


def _constant(value: Any) -> str | None:
    match value:
        case bool() | int():
            return str(int(value))
        case str() if "\0" not in value:
            quoted = str(value).replace("'", "''")
            return f"'{quoted}'"
    return None


def fill(places: Sequence[Any], values: Mapping[str, Any], database: Any) -> list[Any]:
    """Return the values of these parameters: of a column by its name, else the constant itself."""
    return [
        place
        if type(place) is not Column
        else value
        if type(value := values[place.name]) in place.as_is
        else converted(place.field, value, database)
        for place in places
    ]


@cache
def insert_sql(vendor: str, model: type[Model], ignore_conflicts: bool) -> tuple[str, tuple[Column, ...]]:
    """Return the SQL that inserts one row, and its columns."""
    fields = [field for field in model._meta.concrete_fields if not isinstance(field, AutoField)]
    options = {"on_conflict": OnConflict.IGNORE} if ignore_conflicts else {}
    query = InsertQuery(model, **options)
    # explicit Nones: the model's defaults, such as an id, must not be computed
    query.insert_values(fields, [model(**dict.fromkeys(field.attname for field in fields))])
    compiler = query.get_compiler(connection=this_database())
    compiler.returning_fields = None
    [(sql, _)] = compiler.as_sql()
    return sql, tuple(column_of(field, vendor) for field in fields)


@cache
def update_sql(
    vendor: str,
    model: type[Model],
    fields: tuple[str, ...],
    of: tuple[str, ...],
    parts: frozenset[str] = frozenset(),
) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL of `QuerySet.update` on the rows that match `of`, and its parameters. parts: fields of
    which `Members` are set."""
    key = model._meta.pk.name
    found = {name: value(model, key if name == "pk" else name, name) for name in of}
    query: Any = model._default_manager.filter(**found).query.chain(UpdateQuery)
    to: dict[str, Any] = {name: value(model, name, f"to {name}") for name in fields}
    query.add_update_values({**to, **{name: _WithMembers(F(name), to[name]) for name in parts}})
    sql, places = query.get_compiler(connection=this_database()).as_sql()
    return sql, _columns_of(places, vendor)


@cache
def update_by_key_sql(
    vendor: str, model: type[Model], fields: tuple[str, ...]
) -> tuple[str, tuple[Column, ...]]:
    """Return `update_sql` for a row by its key; all its values are columns of that row."""
    sql, places = update_sql(vendor, model, fields, ("pk",))
    return sql, tuple(column_of(place.field, vendor) for place in places)


def _with_json(statement: tuple[str, tuple[tuple[str, str], ...]], rows: Sequence[Model]) -> Statement:
    sql, names = statement
    values = [{column: getattr(row, name) for column, name in names} for row in rows]
    text = json_text.dumps(values, default=_as_text)
    return sql, (text, len(rows))


def _as_text(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} can't be the value of a column")


@cache
def _json_insert(model: type[Model]) -> tuple[str, tuple[tuple[str, str], ...]]:
    fields: list[Any] = [f for f in model._meta.concrete_fields if not isinstance(f, AutoField)]
    listed = ", ".join(f'"{field.column}"' for field in fields)
    sql = f'INSERT INTO "{model._meta.db_table}" ({listed}) SELECT {listed} FROM {_json_rows(fields)}'
    return sql, tuple((field.column, field.attname) for field in fields)


@cache
def _json_update(model: type[Model], names: tuple[str, ...]) -> tuple[str, tuple[tuple[str, str], ...]]:
    table, key = model._meta.db_table, model._meta.pk
    fields: list[Any] = [model._meta.get_field(name) for name in names]
    to = ", ".join(f'"{field.column}" = given."{field.column}"' for field in fields)
    sql = (
        f'UPDATE "{table}" SET {to} FROM {_json_rows([key, *fields])} '
        f'WHERE "{table}"."{key.column}" = given."{key.column}"'
    )
    return sql, tuple((field.column, field.attname) for field in (key, *fields))


@cache
def _upsert_clause(model: type[Model]) -> str:
    key: Any = model._meta.pk
    others = [field.column for field in model._meta.concrete_fields if field is not key]
    to = ", ".join(f'"{column}" = excluded."{column}"' for column in others)
    return f' ON CONFLICT ("{key.column}") DO UPDATE SET {to}'


def _json_rows(fields: Sequence[Any]) -> str:
    """The limit gives the planner the number of rows: it would assume a hundred, and read a whole table."""
    types = ", ".join(f'"{field.column}" {field.db_type(this_database())}' for field in fields)
    return f"(SELECT * FROM json_to_recordset(%s::json) AS row({types}) LIMIT %s::int) AS given"


def _multi_row_inserts(rows: Sequence[Model]) -> Iterator[Statement]:
    """Yield inserts of up to `MAX_ROWS` rows, in powers of two, so that there are few statements to
    compile."""
    database = this_database()
    sql, plan = insert_sql(database.vendor, type(rows[0]), ignore_conflicts=False)
    head, values, places = sql.partition(" VALUES ")
    at_most = min(MAX_ROWS, (database.features.max_query_params or MAX_PARAMETERS) // len(plan))
    first = 0
    while first < len(rows):
        count = 1 << (min(len(rows) - first, at_most).bit_length() - 1)
        some = rows[first : first + count]
        yield head + values + ", ".join([places] * count), columns(some, plan, database)
        first += count
