"""roll_worker.sh, with a docker that only notes what it is asked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dispatcher_project.supervisor.data_folder import ROOT

DOCKER = """#!/bin/sh
echo "$@" >> "$NOTES"
case "$*" in
    *"ps --quiet"*) printf "$RUNNING" ;;
    *" up "*) exit "$UP_STATUS" ;;
esac
"""


def roll(folder: Path, *, running: str, up_status: int = 0) -> tuple[int, list[str]]:
    docker, notes = folder / "docker", folder / "notes"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "NOTES": str(notes),
        "RUNNING": running,
        "UP_STATUS": str(up_status),
    }
    command = [str(ROOT / "deploy/roll_worker.sh"), "-f", "c.yaml"]
    done = subprocess.run(command, env=environment, check=False, timeout=30)
    return done.returncode, notes.read_text().splitlines()


@pytest.mark.parametrize(("running", "scale"), [("", 1), ("a\\n", 2), ("a\\nb\\n", 4)])
def test_the_new_containers_take_jobs_before_the_old_ones_stop(
    tmp_path: Path, running: str, scale: int
) -> None:
    status, asked = roll(tmp_path, running=running)
    assert status == 0
    up = f"compose -f c.yaml up --detach --no-deps --no-recreate --wait --scale gpu_worker={scale} gpu_worker"
    assert asked[:2] == ["compose -f c.yaml ps --quiet gpu_worker", up]
    old = running.split("\\n")[:-1]
    assert sorted(asked[2 : 2 + len(old)]) == [f"stop {name}" for name in old]
    assert asked[2 + len(old) :] == [f"rm {name}" for name in old]


def test_the_old_container_continues_if_the_new_one_does_not_become_ready(tmp_path: Path) -> None:
    status, asked = roll(tmp_path, running="a\\n", up_status=1)
    assert status != 0
    assert not [line for line in asked if line.startswith(("stop", "rm"))]
