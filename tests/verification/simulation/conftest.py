from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.database_copies import copy_to_file
from tests.verification.simulation.player import Player, started_player


@pytest.fixture(scope="session")
def player(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Player]:
    migrated = tmp_path_factory.mktemp("player") / "migrated.sqlite3"
    copy_to_file(migrated)
    with started_player(migrated) as started:
        yield started
