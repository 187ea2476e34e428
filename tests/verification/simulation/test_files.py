"""Jobs with files and long results, in a store that dies, loses replies, is cut off and lags behind."""

from __future__ import annotations

import pytest

from dispatcher_project.supervisor.embedded import find_valkey
from tests.verification.simulation.player import Player

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]
OTHERS = ("kill_in_a_step,kill", "commits_fail,commit_replies_lost", "database_forgets")
FAULTS = "store_down,store_replies_lost,store_cut,store_heads_lie"


@pytest.mark.parametrize(
    "others", ["kill_in_a_step,kill", "commits_fail,commit_replies_lost", "database_forgets"]
)
def test_no_file_is_lost_half_or_unknown(player: Player, others: str) -> None:
    played = player.play(2, first=1, jobs=1, faults_each=8, files=5, faults=f"{FAULTS},{others}")
    assert played["broken"] == []
    assert played["cost"]["artifacts"] > 5
    assert played["cost"]["store_requests"] > 50


@pytest.mark.parametrize(
    ("mechanism", "faults", "law"),
    [
        ("second look for an object", "store_heads_lie", "job "),
        ("objects before the end", "store_cut,store_down", "(13)"),
        ("uses of outputs", "store_replies_lost", "file:"),
        ("objects without a row", "kill_in_a_step,store_replies_lost", "file: no row"),
    ],
)
def test_a_law_breaks_without(player: Player, mechanism: str, faults: str, law: str) -> None:
    played = player.play(
        20, first=20, without=mechanism, jobs=1, faults_each=6, files=5, faults=faults, law=law
    )
    assert any(one.startswith(law) for one in played["broken"]), played["broken"]
