"""Values on their way into columns, and out of them into rows.

What Django's fields say, by a shorter way where that is certain: SQLite takes most values as they are, and
the way through a field's five methods costs as much as the statement that carries the value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.db import DEFAULT_DB_ALIAS, models
from django.db.models.query import get_related_populators

_AS_IT_IS: dict[type[Any], type] = {
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
"""By field, the type whose values SQLite takes. PostgreSQL takes texts so; of numbers its driver is told how
wide they are."""

Convert = Callable[[Any, Any, Any], Any]


def saved(field: Any, value: Any, database: Any) -> Any:
    """As `field.get_db_prep_save` says it."""
    kind = type(field)
    plain = _AS_IT_IS.get(kind)
    if plain is str and type(value) is str:
        return value
    if database.vendor == "sqlite":
        if value is None or type(value) is plain:
            return value
        if kind is models.DateTimeField and type(value) is datetime and value.tzinfo is UTC:
            return value.replace(tzinfo=None).isoformat(" ")
        if kind is models.ForeignKey:
            return saved(field.target_field, value, database)
    return field.get_db_prep_save(value, database)


def converter(convert: Convert, database: Any) -> Convert:
    """What does the same as this one, of a column of this database."""
    if database.vendor == "sqlite" and convert == database.ops.convert_datetimefield_value:
        return _moment
    return convert


def _moment(value: Any, _expression: Any, _database: Any) -> datetime | None:
    """The driver has read those of columns already, and those of expressions not yet."""
    if value is None:
        return None
    naive = datetime.fromisoformat(value) if type(value) is str else value
    return naive.replace(tzinfo=UTC)  # type: ignore[no-any-return]


def builder(rows: models.QuerySet[Any, Any], compiler: Any) -> Callable[[list[Any]], Any]:
    """Makes of a row's columns what the queryset would give."""
    names = [*rows.query.values_select, *rows.query.annotation_select]
    match rows._iterable_class.__name__:  # type: ignore[attr-defined]
        case "ModelIterable":
            return _rows_builder(rows.model, compiler)
        case "ValuesIterable":
            return lambda columns: dict(zip(names, columns, strict=True))
        case "ValuesListIterable":
            return tuple
        case "FlatValuesListIterable":
            return lambda columns: columns[0]
        case other:
            raise TypeError(f"no statement is made of {other}")


def _rows_builder(model: type[models.Model], compiler: Any) -> Callable[[list[Any]], Any]:
    """A row, and those that `select_related` reads with it, as the ORM's own iterator makes them."""
    own = len(compiler.klass_info["select_fields"])
    names = [column[0].target.attname for column in compiler.select[:own]]
    populators: Any = get_related_populators  # its stubs are of a later Django
    related = populators(compiler.klass_info, compiler.select, DEFAULT_DB_ALIAS)
    if not related:
        return lambda columns: model.from_db(DEFAULT_DB_ALIAS, names, columns)

    def build(columns: list[Any]) -> models.Model:
        row = model.from_db(DEFAULT_DB_ALIAS, names, columns[:own])
        for other in related:
            other.populate(columns, row)
        return row

    return build
