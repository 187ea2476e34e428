"""Every precompiled read that a product module keeps: a new one is found by itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module

import pytest
from django.db import connection

from foundation.database.statements import AnyRow, Read, ReadAmong
from tests.support.map import ROOT, product_modules

pytestmark = [pytest.mark.django_db, pytest.mark.database]


def reads() -> Iterator[tuple[str, Read]]:
    for module in product_modules():
        if "statements" not in (ROOT / f"{module.replace('.', '/')}.py").read_text():
            continue
        for name, kept in vars(import_module(module)).items():
            if isinstance(kept, AnyRow):
                yield f"{module}.{name}", kept.read
            elif isinstance(kept, ReadAmong):
                yield f"{module}.{name}", Read(partial(kept._of_size, 2))
            elif isinstance(kept, Read):
                yield f"{module}.{name}", kept


def test_the_database_accepts_every_read() -> None:
    """The database parses them, finds all columns, functions and types, and plans them."""
    found = dict(reads())
    assert len(found) > 100
    for name, read in found.items():
        sql, places, _, _ = read._compile(connection)
        values = [place if isinstance(place, str | int | float) else None for place in places]
        with connection.cursor() as cursor:
            try:
                cursor.execute(f"EXPLAIN {sql}", values)
            except Exception as error:
                error.add_note(f"{name}: {sql}")
                raise
