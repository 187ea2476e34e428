"""A running `manage.py up`, for the scenarios that meet the dispatcher as its user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.guard import marked_processes
from tests.support.ports import free_port
from tests.support.processes import is_alive
from tests.support.system.programs import Program
from tests.support.waiting import wait_for

LEFT_SECONDS = 10.0
"""After SIGKILL nothing of a run lives longer than this."""


class Up:
    """A running `up` on a folder of its own. environment: settings of this one only. forked: its processes
    are forked (forking_up.py)."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
        forked: bool = False,
    ) -> None:
        self.folder = folder
        self.output = folder.parent / f"{folder.name}.out"
        self.port = free_port()
        program = ("-m", "tests.support.system.forking_up") if forked else ("manage.py", "up")
        command = [sys.executable, *program, "--data-dir", str(folder), "--port", str(self.port), *options]
        ours = ("REDIS_URL", "BROKER_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")
        inherited = {name: value for name, value in os.environ.items() if name not in ours}
        given = {**inherited, "DISPATCHER_NO_BOOTSTRAP": "1", **(environment or {})}
        self.process: Program | subprocess.Popen[bytes]
        with self.output.open("wb") as output:
            if forked:
                self.process = Program(command, given, outputs=(output.fileno(), output.fileno()))
            else:
                self.process = subprocess.Popen(
                    command, cwd=ROOT, env=given, stdout=output, stderr=subprocess.STDOUT
                )

    def facts(self) -> dict[str, Any]:
        """up.json, once it is there."""
        path = self.folder / "up.json"
        wait_for(lambda: path.exists() or self.process.poll() is not None, seconds=120)
        assert path.exists(), self.output.read_text()
        return dict(json.loads(path.read_text()))

    def left(self) -> list[int]:
        """Processes of this run that live."""
        return [pid for pid in marked_processes(f"{self.folder}#") if is_alive(pid)]

    def kill(self, *others: int) -> None:
        """SIGKILL; fails if one of its processes, or of the others, outlives it."""
        pids = {*self.facts()["pids"].values(), *others}
        self.process.kill()
        self.process.wait()
        wait_for(lambda: not self.left() and not any(map(is_alive, pids)), seconds=LEFT_SECONDS)
        assert not (self.folder / "up.json").exists()

    def ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The answer to a GET, or to a POST of a body, with the demo tenant's key."""
        facts = self.facts()
        request = urllib.request.Request(
            facts["url"] + path,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {facts['tenant_key']}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=90) as response:
            return dict(json.load(response))
