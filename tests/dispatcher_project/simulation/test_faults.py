"""Each fault that once broke a law, by itself: a few histories of it hold them all."""

from __future__ import annotations

import pytest

from dispatcher_project.embedded import find_valkey

from .player import Player

pytestmark = [
    pytest.mark.sqlite_only,
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]


@pytest.mark.parametrize(
    ("faults", "first"),
    [
        ("clock_steps", 7),
        ("database_clock_steps", 7),
        ("fleet_hangs,kill", 2),
        ("placement_removed,kill", 0),
        ("redis_fails_over_and_back", 1),
        ("redis_full", 7),
        ("secret_unreadable,kill", 0),
        ("server_removed,kill", 0),
        ("slow_sweeper,kill", 3),
        ("tenants_capped", 0),
    ],
)
def test_no_law_is_broken(player: Player, faults: str, first: int) -> None:
    """first: near a seed that showed it."""
    played = player.play(1, first=first, faults=faults, jobs=20, faults_each=5)
    assert played["broken"] == []
