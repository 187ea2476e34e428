"""The web server that `bench submit` measures is that of deploy/."""

from __future__ import annotations

import sys

import pytest

from benchmarks.suite.environment import CannotMeasure
from benchmarks.suite.web import UNIT, deployed_command


def test_the_unit_of_deploy_can_be_read():
    command = deployed_command(UNIT.read_text(), 4321)
    assert command[0] == sys.executable
    assert command[command.index("--port") + 1] == "4321"
    assert any(part.startswith("dispatcher_project.") for part in command)


@pytest.mark.parametrize(
    ("interface", "bare"),
    [
        ("asgi", "benchmarks.suite.bare_django_asgi:application"),
        ("wsgi", "benchmarks.suite.bare_django:application"),
    ],
)
def test_the_bare_view_is_served_in_the_same_way(interface, bare):
    application = f"dispatcher_project.{interface}:application"
    unit = f"[Service]\nExecStart=/opt/python -m server --workers 2 {application} --port 8000\n"
    assert deployed_command(unit, 1, bare=True) == [
        sys.executable, "-m", "server", "--workers", "2", bare, "--port", "1",
    ]  # fmt: skip


def test_the_bare_view_is_served_by_our_own_server():
    bare = deployed_command(UNIT.read_text(), 1, bare=True)
    ours = deployed_command(UNIT.read_text(), 1)
    added = [part for part in bare if part not in ours]
    assert added == ["benchmarks.suite.bare_django_asgi:application"]


@pytest.mark.parametrize(
    ("unit", "says"), [("", "has no ExecStart"), ("ExecStart=python x", "has no --port")]
)
def test_a_unit_without_an_exec_start_is_refused(unit, says):
    with pytest.raises(CannotMeasure, match=says):
        deployed_command(unit, 1)
