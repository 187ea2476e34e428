"""Callbacks under faults of their process, its clock, the broker and receivers: one short history each."""

from __future__ import annotations

import pytest

from dispatcher_project.supervisor.embedded import find_valkey
from tests.verification.simulation.player import Player

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]


@pytest.mark.parametrize(
    ("faults", "first", "size"),
    [
        ("broker_down", 0, (24, 6)),
        ("callbacks_clock_steps", 1, (16, 2)),
        ("callbacks_killed", 0, (12, 3)),
        ("receiver_is_sick", 0, (16, 3)),
        ("receivers_hang", 2, (40, 3)),
    ],
)
def test_callbacks_keep_their_promises(
    player: Player, faults: str, first: int, size: tuple[int, int]
) -> None:
    """size: jobs and faults. first: a seed whose faults meet deliveries."""
    jobs, each = size
    played = player.play(1, first=first, faults=faults, jobs=jobs, faults_each=each)
    assert played["broken"] == []
