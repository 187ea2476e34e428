"""Hosts are replaced one by one by those of another version, also one whose keys have another layout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatcher_project.supervisor.embedded import find_valkey
from tests.support.system.running import drop_database, own_database
from verification.proving.system import CannotProve
from verification.proving.upgrade import (
    Plan,
    checkout_of,
    copy_of_present,
    raise_layout,
    rolling_upgrade,
)

pytestmark = [pytest.mark.scenario, pytest.mark.by_hand]

BEFORE_LAYOUTS_HAD_ROWS = "688dbe0"
"""The last version whose processes know nothing of the row that says which layout is in use."""


def test_a_rolling_upgrade_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """From the version before, where this clone has it, to this one with another layout.

    It takes 78 CPU seconds. In the gate tests/jobs/operations/test_index_switch.py and test_layout_overlap.py
    test the switch, the simulation plays two versions, and tests/dispatcher_project/test_migrations.py looks
    for columns that older processes could not leave out. `manage.py prove_upgrade` plays it longer, and from
    version to version of one layout."""
    if find_valkey() is None:
        pytest.skip("no Valkey or Redis server binary")
    raised = copy_of_present(tmp_path / "raised")
    raise_layout(raised)
    missing = ""
    try:
        versions = (checkout_of(BEFORE_LAYOUTS_HAD_ROWS, tmp_path / "before"), raised)
    except CannotProve as error:
        versions, missing = (copy_of_present(tmp_path / "present"), raised), str(error)
    database = own_database()
    try:
        outcome = rolling_upgrade(
            Plan(
                versions=versions,
                webs=1,
                slots=8,
                shortest=0.5,
                longest=8.0,
                before=3.0,
                between=0.5,
                after=3.0,
                lease_seconds=2.0,
                database=database.get("DATABASE_URL", ""),
            ),
            tmp_path,
        )
    finally:
        drop_database(database)
    assert not outcome.wrongs, "\n".join([*outcome.wrongs[:20], str(outcome.figures), os.fspath(tmp_path)])
    assert outcome.figures["jobs"] > 10
    if missing:
        pytest.skip(f"played from this version on only: {missing}")
