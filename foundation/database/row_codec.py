"""Conversion of values to columns, and of columns to rows.

It is equivalent to Django's fields but shorter where that is certain: SQLite takes most values as they are,
and the calls through a field's five methods cost as much as the statement that carries the value."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models
from django.db.models.base import ModelState
from django.db.models.query import get_related_populators
from django.db.models.signals import post_init, pre_init

from foundation.json_text import JsonText

_PASSED_THROUGH: dict[type[Any], type] = {
    models.AutoField: int,
    models.BigAutoField: int,
    models.BigIntegerField: int,
    models.BooleanField: bool,
    models.CharField: str,
    models.FloatField: float,
    models.PositiveBigIntegerField: int,
    models.PositiveIntegerField: int,
    models.PositiveSmallIntegerField: int,
    models.TextField: str,
}
"""By field, the type whose values SQLite takes unconverted. PostgreSQL takes strings so; for numbers its
driver must know the width."""

Convert = Callable[[Any, Any, Any], Any]
Row = TypeVar("Row", bound=models.Model)


class Column(NamedTuple):
    """The conversion of a field's values for its column.

    name: the row's attribute. as_is: the types that the database takes unconverted; all others go through
    `converted`."""

    name: str
    field: Any
    as_is: frozenset[type]


@cache
def column_of(field: Any, vendor: str) -> Column:
    """Return the column of a field. vendor: of the database."""
    stored = field.target_field if type(field) is models.ForeignKey else field
    plain = _PASSED_THROUGH.get(type(stored))
    as_is: set[type] = set()
    if vendor == "sqlite":
        as_is = {type(None), plain} if plain else {type(None)}
    elif plain is str and stored is field:
        as_is = {str}
    return Column(field.attname, field, frozenset(as_is))


def columns(rows: Sequence[models.Model], plan: Sequence[Column], database: Any) -> list[Any]:
    """Return the values of these columns of each row, row after row."""
    return [
        value if type(value := getattr(row, name)) in as_is else converted(field, value, database)
        for row in rows
        for name, field, as_is in plan
    ]


def database_value(field: Any, value: Any, database: Any) -> Any:
    """Return what `field.get_db_prep_save` would."""
    as_is = column_of(field, database.vendor).as_is
    return value if type(value) in as_is else converted(field, value, database)


def converted(field: Any, value: Any, database: Any) -> Any:
    """Return the `database_value` of a value that the database does not take unconverted."""
    kind = type(field)
    if database.vendor == "sqlite":
        if kind is models.DateTimeField and type(value) is datetime and value.tzinfo is UTC:
            return value.replace(tzinfo=None).isoformat(" ")
        if kind is models.JSONField and type(value) in (dict, list) and field.encoder is None:
            return json.dumps(value)
    if type(value) is JsonText:
        return _json_value(value, database)
    return field.get_db_prep_save(value, database)


def _json_value(value: JsonText, database: Any) -> Any:
    if database.vendor == "sqlite":
        return value.text
    return database.Database.types.json.Jsonb(value, dumps=attrgetter("text"))


def fast_converter(convert: Convert, database: Any) -> Convert:
    """Return an equivalent, faster converter for this column."""
    if database.vendor == "sqlite" and convert == database.ops.convert_datetimefield_value:
        return _read_datetime
    return convert


def _read_datetime(value: Any, _expression: Any, _database: Any) -> datetime | None:
    """Columns are already parsed by the driver, expressions are not."""
    if value is None:
        return None
    naive = datetime.fromisoformat(value) if type(value) is str else value
    return naive.replace(tzinfo=UTC)  # type: ignore[no-any-return]


def row_builder(rows: models.QuerySet[Any, Any], compiler: Any) -> Callable[[list[Any]], Any]:
    """Return a function that turns a row's columns into the queryset's values."""
    names = [*rows.query.values_select, *rows.query.annotation_select]
    match rows._iterable_class.__name__:  # type: ignore[attr-defined]
        case "ModelIterable":
            return _model_builder(rows.model, compiler)
        case "ValuesIterable":
            return lambda columns: dict(zip(names, columns, strict=True))
        case "ValuesListIterable":
            return tuple
        case "FlatValuesListIterable":
            return lambda columns: columns[0]
        case other:
            raise TypeError(f"a statement can't return {other}")


def _model_builder(model: type[models.Model], compiler: Any) -> Callable[[list[Any]], Any]:
    """Build a row, and those that `select_related` reads with it, as the ORM does."""
    own = len(compiler.klass_info["select_fields"])
    names = [column[0].target.attname for column in compiler.select[:own]]
    populators: Any = get_related_populators  # the stubs are for a later Django
    related = populators(compiler.klass_info, compiler.select, DEFAULT_DB_ALIAS)
    make = _read_row(model, names)
    if not related:
        return make

    def build(columns: list[Any]) -> models.Model:
        row = make(columns[:own])
        for other in related:
            other.populate(columns, row)
        return row

    return build


def _read_row(model: type[models.Model], names: Sequence[str]) -> Callable[[Sequence[Any]], models.Model]:
    """Build a row like `model.from_db`; fields without a column are deferred."""
    if not _is_plain(model):
        return lambda columns: model.from_db(DEFAULT_DB_ALIAS, names, columns)

    def make(columns: Sequence[Any]) -> models.Model:
        row = model.__new__(model)
        state = row._state = ModelState()
        state.adding, state.db = False, DEFAULT_DB_ALIAS
        vars(row).update(zip(names, columns, strict=True))
        return row

    return make


def new_row(model: type[Row], /, **values: Any) -> Row:
    """Build a row like `model(**values)`, whose constructor is slow.

    values: by column name (``job_id``, not ``job``). Raises TypeError for an unknown name."""
    constants, made, fields = _blank(model)
    row = model.__new__(model)
    row._state = ModelState()
    own = vars(row)
    own.update(constants)
    for name, make in made:
        if name not in values:
            own[name] = make()
    own.update(values)
    if len(own) != fields:
        raise TypeError(f"{model.__name__} has no {', '.join(values.keys() - _names(model))}")
    return row


@cache
def _blank(
    model: type[models.Model],
) -> tuple[dict[str, Any], tuple[tuple[str, Callable[[], Any]], ...], int]:
    """Return constant defaults, defaults that are computed for each row, and the number of attributes of a
    row."""
    if not _is_plain(model):
        raise TypeError(f"{model.__name__} customizes how a row is made")
    constants: dict[str, Any] = {}
    made: list[tuple[str, Callable[[], Any]]] = []
    for field in model._meta.concrete_fields:
        if field.has_default() and callable(field.default):
            made.append((field.attname, field.get_default))
        else:
            constants[field.attname] = field.get_default()
    return constants, tuple(made), len(constants) + len(made) + len(("_state",))


def _names(model: type[models.Model]) -> set[str]:
    return {field.attname for field in model._meta.concrete_fields}


def _is_plain(model: type[models.Model]) -> bool:
    """Return True if only Django's own code builds its rows."""
    return (
        model.__init__ is models.Model.__init__
        and model.from_db.__func__ is models.Model.from_db.__func__  # type: ignore[attr-defined]
        and not pre_init.has_listeners(model)
        and not post_init.has_listeners(model)
    )
