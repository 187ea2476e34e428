from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.verification.simulation.player import Player, started_player


@pytest.fixture(scope="session")
def player() -> Iterator[Player]:
    with started_player() as started:
        yield started
