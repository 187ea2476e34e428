"""Processes under the supervisor."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


_RUNNER = """
import json, os, sys
from pathlib import Path
from dispatcher_project.supervisor.guard import MARKER_VARIABLE
from dispatcher_project.supervisor.loop import StartFailed, Supervisor
from dispatcher_project.supervisor.child import ChildSpec, Plan
from dispatcher_project.supervisor.output import Terminal

folder = Path(sys.argv[1])
wanted = json.loads((folder / "plan.json").read_text())
marker = f"{folder}#test"
environment = {**os.environ, MARKER_VARIABLE: marker, "FOLDER": str(folder)}

def spec(name, code, **options):
    return ChildSpec(name, (sys.executable, "-S", "-c", code), environment, **options)

def write_pids(pids):
    (folder / "pids.tmp").write_text(json.dumps(pids))
    (folder / "pids.tmp").replace(folder / "pids.json")

plan = Plan(
    start=tuple(tuple(spec(**child) for child in stage) for stage in wanted["start"]),
    stop=tuple(map(tuple, wanted["stop"])),
)
try:
    Supervisor(
        plan, folder=folder / "s", log_folder=folder / "log", marker=marker, terminal=Terminal(),
        on_pids=write_pids,
    ).run()
except StartFailed as error:
    sys.exit(f"FAILED {error}")
"""


CHILD = """
import os, signal, socket, sys, time
folder = os.environ["FOLDER"]
def note(what):
    with open(f"{folder}/notes", "a") as file:
        file.write(f"{what} {NAME}\\n")
def notify(text):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
def stop(*_):
    note("stop")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
note("start")
"""


def child(name: str, code: str = "notify('READY=1')\nsignal.pause()", **options: Any) -> dict[str, Any]:
    """A fake child: notes its start and stop in the folder's `notes`, then runs `code`."""
    return {"name": name, "code": CHILD.replace("{NAME}", name) + code, **options}


class Run:
    """A running supervisor process and what it left in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _RUNNER, str(folder)],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def notes(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "notes").read_text().splitlines()
        return []

    def pids(self) -> dict[str, int]:
        with contextlib.suppress(FileNotFoundError):
            return dict(json.loads((self.folder / "pids.json").read_text()))
        return {}

    def wait_ready(self) -> dict[str, int]:
        wait_for(lambda: bool(self.pids()) or self.process.poll() is not None)
        assert self.pids(), self.output.read_text()
        return self.pids()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)
