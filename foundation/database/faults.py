"""Why a database raised an error: it is away, a table or right is missing, or it refuses a statement."""

from __future__ import annotations

from enum import Enum

from django.db import DataError, Error, IntegrityError, InterfaceError, NotSupportedError, ProgrammingError


class Fault(Enum):
    """The cause of an error, by what ends it."""

    OUTAGE = "outage"
    """The database is away, or in conflict with others: the same statement may succeed later."""
    SCHEMA = "schema"
    """A table, a column or a right is missing: until a migration or a grant."""
    STATEMENT = "statement"
    """The statement or its values are refused: a repeated statement is refused again."""


_SCHEMA_STATES = frozenset(
    ("3D000", "3F000", "42501", "42703", "42704", "42804", "42846", "42883", "42P01", "42P10")
)
"""SQLSTATEs of missing or different tables, columns, functions, types and rights."""
_STATEMENTS = ("0A", "21", "22", "23", "42", "54")
"""Classes of SQLSTATE that blame a statement or its values; the other ones are outages, or conflicts."""
_MISSING_IN_SQLITE = ("no such", "has no column", "columns but")
_STATE_OF_SQLITE = (
    "cannot operate on",
    "cannot start",
    "cannot commit",
    "cannot rollback",
    "locked",
    "sql logic error",
)
"""Parts of SQLite's messages about locks and transactions: errors that no value causes."""


def fault_of(error: Error) -> Fault:
    """Return why the database raised an error. Its driver's error is the cause."""
    if isinstance(error, DataError | IntegrityError):
        return Fault.STATEMENT
    cause = error.__cause__
    if isinstance(error, InterfaceError):
        return Fault.OUTAGE
    if state := getattr(cause, "sqlstate", None):
        if state in _SCHEMA_STATES:
            return Fault.SCHEMA
        return Fault.STATEMENT if state[:2] in _STATEMENTS else Fault.OUTAGE
    text = str(cause or error).lower()
    if any(part in text for part in _MISSING_IN_SQLITE):
        return Fault.SCHEMA
    if cause is None or any(part in text for part in _STATE_OF_SQLITE):
        return Fault.OUTAGE
    if isinstance(error, ProgrammingError | NotSupportedError):  # by the driver: it can't send a value
        return Fault.STATEMENT
    is_refused = getattr(cause, "sqlite_errorname", "") == "SQLITE_ERROR"
    return Fault.STATEMENT if is_refused else Fault.OUTAGE
