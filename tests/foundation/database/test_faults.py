"""An outage ends by itself, a missing table by a migration, and a refused statement never."""

from __future__ import annotations

import sqlite3

import pytest
from django.db import Error, IntegrityError, InterfaceError, OperationalError, ProgrammingError

from foundation.database.faults import Fault, fault_of
from tests.support.database_errors import of_postgresql, of_sqlite, refused


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (of_sqlite("too many SQL variables"), Fault.STATEMENT),
        (of_sqlite("Expression tree is too large (maximum depth 1000)"), Fault.STATEMENT),
        (of_sqlite("no such column: a"), Fault.SCHEMA),
        (of_sqlite("table a has no column named b"), Fault.SCHEMA),
        (of_sqlite("database is locked", "SQLITE_BUSY"), Fault.OUTAGE),
        (of_sqlite("database or disk is full", "SQLITE_FULL"), Fault.OUTAGE),
        (refused(ProgrammingError, sqlite3.ProgrammingError("type 'set' is not supported")), Fault.STATEMENT),
        (
            refused(ProgrammingError, sqlite3.ProgrammingError("Cannot operate on a closed database.")),
            Fault.OUTAGE,
        ),
        (of_postgresql(ProgrammingError, "42601"), Fault.STATEMENT),
        (of_postgresql(ProgrammingError, "42P01"), Fault.SCHEMA),
        (of_postgresql(ProgrammingError, "42703"), Fault.SCHEMA),
        (of_postgresql(OperationalError, "54000"), Fault.STATEMENT),
        (of_postgresql(OperationalError, "57014"), Fault.OUTAGE),
        (of_postgresql(OperationalError, "40P01"), Fault.OUTAGE),
        (of_postgresql(OperationalError, "53200"), Fault.OUTAGE),
        (of_postgresql(ProgrammingError, "42501"), Fault.SCHEMA),
        (IntegrityError("UNIQUE constraint failed"), Fault.STATEMENT),
        (OperationalError("no connection came free in 30 s"), Fault.OUTAGE),
        (of_postgresql(InterfaceError, "54000"), Fault.OUTAGE),
    ],
)
def test_the_cause_of_an_error_is_read_from_its_driver(error: Error, fault: Fault) -> None:
    assert fault_of(error) is fault
