"""Each fault that once broke a law, alone: a few histories of it keep all laws."""

from __future__ import annotations

import pytest

from dispatcher_project.supervisor.embedded import find_valkey
from tests.verification.simulation.player import Player

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]


@pytest.mark.parametrize(
    ("faults", "first"),
    [
        ("fleet_hangs,kill", 2),
        ("redis_fails_over_and_back", 1),
        ("redis_full", 7),
        ("server_removed,kill", 0),
        # the default mix of `test_seeds` has these too
        pytest.param("clock_steps", 7, marks=pytest.mark.by_hand),
        pytest.param("database_clock_steps", 7, marks=pytest.mark.by_hand),
        pytest.param("placement_removed,kill", 0, marks=pytest.mark.by_hand),
        pytest.param("secret_unreadable,kill", 0, marks=pytest.mark.by_hand),
        pytest.param("slow_sweeper,kill", 3, marks=pytest.mark.by_hand),
        pytest.param("tenants_capped", 0, marks=pytest.mark.by_hand),
    ],
)
def test_no_law_is_broken(player: Player, faults: str, first: int) -> None:
    """first: near a seed that showed it."""
    played = player.play(1, first=first, faults=faults, jobs=20, faults_each=5)
    assert played["broken"] == []


@pytest.mark.parametrize("seed", [4, 11])
def test_an_upgrade_to_another_layout_breaks_no_law(player: Player, seed: int) -> None:
    """4: sweeps of both layouts take ticks in turn. 11: old workers' runs outlive the switch by a lease."""
    played = player.play(1, first=seed, faults="layouts_change", jobs=20, faults_each=4)
    assert played["broken"] == []
