"""Commands as in a terminal of so many columns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from dispatcher_project.management.commands import dlq
from jobs import ports
from tests.support.queue_harness import QueueHarness


class Screen(StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@dataclass
class Run:
    """status: as the shell sees it; said: stdout, or the error's one line."""

    status: int
    said: str

    @property
    def json(self) -> Any:
        return json.loads(self.said)


Terminal = Callable[..., Run]


def run_command(name: str, *arguments: str) -> Run:
    out, err = StringIO(), StringIO()
    try:
        call_command(name, *arguments, stdout=out, stderr=err)
    except SystemExit as end:
        return Run(int(end.code or 0), out.getvalue())
    except CommandError as error:
        (line,) = str(error).splitlines()
        return Run(error.returncode, line)
    return Run(0, out.getvalue())


def while_waiting(monkeypatch: pytest.MonkeyPatch, module: Any, act: Callable[[], Any]) -> None:
    """Called whenever the command would sleep."""
    monkeypatch.setattr(
        module, "time", SimpleNamespace(sleep=lambda seconds: act(), monotonic=time.monotonic)
    )


@pytest.fixture
def terminal(queue: QueueHarness, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(ports, "production_ports", lambda: queue.ports)
    monkeypatch.setattr(dlq, "RETRY_WAIT_SECONDS", 0.0)
    return run_command
