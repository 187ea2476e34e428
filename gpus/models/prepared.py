"""Statements of the hot path: written with the ORM, compiled once per database, then only executed.

Building and compiling a queryset costs ten times what SQLite needs to answer it. Columns, converters and
locks stay Django's: a statement here says what the same queryset would say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

from django.db import connection
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

    def prepared(self, value: Any) -> Any:
        return self.output_field.get_db_prep_save(value, connection)


def value(model: type[Model], field: str, name: str = "") -> Value:
    """A place for a value of this field, called `name` (or as the field)."""
    return Value(name or field, cast("Field[Any, Any]", model._meta.get_field(field)))


class Read:
    """rows: makes the queryset, with `Value` where values go; called once per kind of database."""

    def __init__(self, rows: Callable[[], QuerySet[Any, Any]]) -> None:
        self._rows = rows
        self._compiled: dict[str, tuple[str, tuple[Any, ...], list[Any], Callable[[list[Any]], Any]]] = {}

    def __call__(self, **values: Any) -> list[Any]:
        """What the queryset would give: model instances, dicts, tuples or flat values."""
        compiled = self._compiled.get(connection.vendor)
        if compiled is None:
            compiled = self._compiled[connection.vendor] = self._compile()
        sql, places, converters, build = compiled
        with connection.cursor() as cursor:
            cursor.execute(sql, _fill(places, values))
            rows = [list(row) for row in cursor.fetchall()]
        for row in rows:
            for at, expression, convert in converters:
                row[at] = convert(row[at], expression, connection)
        return [build(row) for row in rows]

    def first(self, **values: Any) -> Any:
        """The first row, or None."""
        return next(iter(self(**values)), None)

    def _compile(self) -> tuple[str, tuple[Any, ...], list[Any], Callable[[list[Any]], Any]]:
        rows = self._rows()
        compiler = rows.query.get_compiler(connection=connection)
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
        self, model: type[Model], field: str, rows: Callable[[list[Value]], QuerySet[Any, Any]]
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
    sql, fields = _insert_sql(connection.vendor, type(row), ignore_conflicts)
    with connection.cursor() as cursor:
        cursor.execute(
            sql, [field.get_db_prep_save(getattr(row, field.attname), connection) for field in fields]
        )
        return bool(cursor.rowcount)


def insert_all(rows: Sequence[Model]) -> None:
    """Of one kind; keys that the database makes are not read back."""
    if len(rows) == 1:
        insert(rows[0])
    elif rows:
        type(rows[0])._default_manager.bulk_create(rows)


def update(row: Model, fields: Sequence[str]) -> bool:
    """Writes these fields (no relations) of a row that was read; whether it is still there."""
    return change(type(row), row.pk, {name: getattr(row, name) for name in fields})


def change(model: type[Model], pk: Any, fields: Mapping[str, Any], **only_if: Any) -> bool:
    """Sets these fields of the row, if the fields in `only_if` have these values; whether it was so."""
    sql, places = _update_sql(connection.vendor, model, tuple(fields), tuple(only_if))
    values = {"pk": pk, **{f"to {name}": value for name, value in fields.items()}, **only_if}
    with connection.cursor() as cursor:
        cursor.execute(sql, _fill(places, values))
        return bool(cursor.rowcount)


def _fill(places: Sequence[Any], values: Mapping[str, Any]) -> list[Any]:
    return [place.prepared(values[place.name]) if isinstance(place, Value) else place for place in places]


def _builder(rows: QuerySet[Any, Any], compiler: Any) -> Callable[[list[Any]], Any]:
    names = [*rows.query.values_select, *rows.query.annotation_select]
    match rows._iterable_class.__name__:  # type: ignore[attr-defined]
        case "ModelIterable":
            names = [column[0].target.attname for column in compiler.select]
            return lambda columns: rows.model.from_db(connection.alias, names, columns)
        case "ValuesIterable":
            return lambda columns: dict(zip(names, columns, strict=True))
        case "ValuesListIterable":
            return tuple
        case "FlatValuesListIterable":
            return lambda columns: columns[0]
        case other:
            raise TypeError(f"no statement is made of {other}")


@cache
def _insert_sql(vendor: str, model: type[Model], ignore_conflicts: bool) -> tuple[str, list[Any]]:
    fields = [field for field in model._meta.concrete_fields if not isinstance(field, AutoField)]
    options = {"on_conflict": OnConflict.IGNORE} if ignore_conflicts else {}
    query = InsertQuery(model, **options)
    query.insert_values(fields, [model()])
    compiler = query.get_compiler(connection=connection)
    compiler.returning_fields = None
    [(sql, _)] = compiler.as_sql()
    return sql, fields


@cache
def _update_sql(
    vendor: str, model: type[Model], fields: tuple[str, ...], only_if: tuple[str, ...]
) -> tuple[str, tuple[Any, ...]]:
    """As `QuerySet.update` on the row's key and `only_if` would say it."""
    conditions = {name: value(model, name) for name in only_if}
    found = model._default_manager.filter(pk=value(model, model._meta.pk.name, "pk"), **conditions)
    query: Any = found.query.chain(UpdateQuery)
    query.add_update_values({name: value(model, name, f"to {name}") for name in fields})
    sql, places = query.get_compiler(connection=connection).as_sql()
    return sql, tuple(places)
