"""A few short histories of the real protocol break no law; a seed always gives the same history.

`manage.py simulate` plays more and longer ones (docs/explanation/simulation.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import find_valkey
from tests.support.database_copies import copy_to_file
from tests.verification.simulation.player import HASH_SEED, MIGRATED, Player
from tests.verification.simulation.player import __name__ as player_module

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_valkey() is None, reason="no Valkey or Redis server binary on this machine"),
]
SEEDS, PARTS = 8, 2
JOBS, FAULTS = 6, 6


@pytest.mark.parametrize("part", range(PARTS))
def test_no_law_is_broken(player: Player, part: int) -> None:
    each = SEEDS // PARTS
    played = player.play(each, first=part * each, jobs=JOBS, faults_each=FAULTS)
    assert played["broken"] == []
    assert played["played"] == each
    assert played["cost"]["jobs"] >= each * JOBS


@pytest.mark.parametrize("first", [1, 8, 37])
def test_runs_of_workflows_break_no_law(player: Player, first: int) -> None:
    """first: a seed that showed runs which waited for ever."""
    played = player.play(1, first=first, jobs=3, faults_each=8, runs=5)
    assert played["broken"] == []
    assert played["cost"]["nodes_completed"] > 10


def test_schedules_fire_each_due_time_once(player: Player) -> None:
    """Through a night in which the clocks change, with sweepers that are killed, doubled and stopped."""
    faults = "kill,kill_in_a_step,pause_in_a_step,second_sweeper,clock_steps,beat_down"
    played = player.play(4, first=3, jobs=2, faults_each=8, faults=faults, schedules=3)
    assert played["broken"] == []
    assert played["cost"]["firings"] > 20


def test_a_world_comes_to_rest_after_its_last_resumed_schedule(player: Player) -> None:
    """In this seed, a schedule was resumed after the world had been taken to be at rest."""
    played = player.play(1, first=14, jobs=2, faults_each=2, runs=1, schedules=6, edited=0, files=0)
    assert played["broken"] == []


@pytest.mark.parametrize("first", [120_004, 120_021])
def test_schedules_are_changed_triggered_and_backfilled_by_operators(player: Player, first: int) -> None:
    """first: a seed in which a repeated request for a backfill was answered with another count."""
    played = player.play(1, first=first, jobs=2, faults_each=8, schedules=2, edited=2, files=2)
    assert played["broken"] == []
    assert played["cost"]["firings"] > 10


def test_a_seed_replays_exactly(player: Player, tmp_path: Path) -> None:
    """In another process, with another order of hashes, after any other seeds."""
    file, migrated = tmp_path / "steps.txt", tmp_path / "migrated.sqlite3"
    copy_to_file(migrated)
    size = (
        "--jobs",
        "5",
        "--faults",
        "12",
        "--runs",
        "1",
        "--schedules",
        "1",
        "--edited",
        "1",
        "--files",
        "1",
    )
    done = subprocess.run(
        [sys.executable, "-m", player_module, "simulate", "--seed", "7", *size, "--history", str(file)],
        cwd=ROOT,
        env={**os.environ, MIGRATED: str(migrated), "PYTHONHASHSEED": f"{HASH_SEED}1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sizes = {"runs": 1, "schedules": 1, "edited": 1, "files": 1}
    player.play(1, first=2, jobs=2, faults_each=2)
    steps = player.play(1, first=7, jobs=5, faults_each=12, with_steps=True, **sizes)["steps"]
    assert steps == file.read_text().splitlines()
    assert len(steps) > 500


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--only", "nope"), "no fault is named nope; there are "),
        (("--seeds", "0"), "is not a positive number"),
        (("--faults", "-1"), "must not be negative"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: tuple[str, ...], says: str) -> None:
    with pytest.raises(CommandError) as error:
        call_command("simulate", *arguments)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_fault_is_not_a_broken_law() -> None:
    """Status 1 says that a law broke."""
    with pytest.raises(CommandError) as error:
        call_command("simulate", "--only", "nope")
    assert error.value.returncode == 2
