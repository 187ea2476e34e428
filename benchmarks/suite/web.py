"""The web server's command from `deploy/systemd`, so that the deployed one is measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from dispatcher_project.supervisor.data_folder import ROOT

from .environment import CannotMeasure

UNIT = ROOT / "deploy" / "systemd" / "dispatcher-web.service"
_WITHOUT_UNIT = "ExecStart=python -m dispatcher_project.web --host 127.0.0.1 --port 8000"
_OURS = {"dispatcher_project.asgi:application": "asgi", "dispatcher_project.wsgi:application": "wsgi"}
_SERVER = "dispatcher_project.web"
"""It serves the dispatcher unless its first argument names another application."""
_BARE = {
    "asgi": "benchmarks.suite.bare_django_asgi:application",
    "wsgi": "benchmarks.suite.bare_django:application",
}


def deployed_unit() -> str:
    """The unit's text; of an installed wheel, which has no deploy/, its command alone."""
    return UNIT.read_text() if UNIT.exists() else _WITHOUT_UNIT


def deployed_command(unit: str, port: int, *, bare: bool = False) -> list[str]:
    """Return the unit's ExecStart with this Python, on that port of loopback. bare: for the bare Django view.

    Raises CannotMeasure if it has no such line, port or application."""
    line = next((line for line in unit.splitlines() if line.startswith("ExecStart=")), "")
    command = shlex.split(line.removeprefix("ExecStart="))
    if not command:
        raise CannotMeasure(f"{UNIT.name} has no ExecStart")
    command[0] = sys.executable if "python" in command[0] else command[0]
    _replace(command, "--port", str(port))
    if bare and _SERVER in command:
        command.insert(command.index(_SERVER) + 1, _BARE["asgi"])
    return [_BARE[_OURS[part]] if bare and part in _OURS else part for part in command]


def _replace(command: list[str], option: str, value: str) -> None:
    if option not in command:
        raise CannotMeasure(f"{UNIT.name} has no {option}")
    command[command.index(option) + 1] = value


def serves_with(command: Sequence[str]) -> str:
    """Return the program without paths, for the report."""
    shown = list(command[1:])
    return " ".join(shown[1:] if shown[:1] == ["-m"] else shown)
