"""Errors as Django raises them for those of a driver."""

from __future__ import annotations

import sqlite3

from django.db import Error, OperationalError


def refused(error: type[Error], cause: Exception) -> Error:
    found = error(str(cause))
    found.__cause__ = cause
    return found


def of_sqlite(message: str, name: str = "SQLITE_ERROR") -> Error:
    cause = sqlite3.OperationalError(message)
    cause.sqlite_errorname = name
    return refused(OperationalError, cause)


def of_postgresql(error: type[Error], state: str, message: str = "planted") -> Error:
    cause = Exception(message)
    cause.sqlstate = state  # type: ignore[attr-defined]
    return refused(error, cause)
