"""The dispatcher on trial: the trial's own, one of this machine (its up.json), or only an address."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from foundation.program import OWN_COMMAND
from verification.proving.children import Child, Children

_START_SECONDS = 300.0
"""Also on a busy machine."""
_STOP_SECONDS = 100.0
_REPLACED = ("REDIS_URL", "BROKER_URL", "DATABASE_URL", "DJANGO_SETTINGS_MODULE")


class CannotProve(Exception):
    """The trial can't begin; the message says why and how to fix that."""


class System(Protocol):
    """A dispatcher on trial.

    url: for clients. operator_key: may register. redis_url, database_url: direct, past any proxy; empty if
    not accessible. settings: the variables its processes were started with."""

    url: str
    operator_key: str
    redis_url: str
    database_url: str

    def pid(self, name: str) -> int:
        """Return the pid of one of its processes; 0 while it does not run."""
        ...

    def pids(self) -> dict[str, int]: ...

    def settings(self) -> dict[str, str]: ...

    def stop(self) -> None: ...


class UpSystem:
    """A dispatcher that `manage.py up` runs on this machine."""

    def __init__(self, up_json: Path) -> None:
        self._up_json = up_json
        facts = self._facts()
        if not facts:
            raise CannotProve(f"{up_json} can't be read: does that dispatcher run?")
        self.url: str = facts["url"]
        self.operator_key: str = facts["api_key"]
        self.redis_url: str = facts["redis_url"]
        self.database_url: str = facts["database_url"]

    def pid(self, name: str) -> int:
        return self.pids().get(name, 0)

    def pids(self) -> dict[str, int]:
        return {name: int(pid) for name, pid in self._facts().get("pids", {}).items()}

    def settings(self) -> dict[str, str]:
        return dict(json.loads((self._up_json.parent / "environment.json").read_text()))

    def stop(self) -> None:
        """No effect: the trial did not start it."""

    def _facts(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(self._up_json.read_text()))
        return {}


class RemoteSystem:
    """A remote dispatcher, given by its address and a key."""

    redis_url = database_url = ""

    def __init__(self, url: str, api_key: str) -> None:
        self.url, self.operator_key = url, api_key

    def pid(self, name: str) -> int:
        return 0

    def pids(self) -> dict[str, int]:
        return {}

    def settings(self) -> dict[str, str]:
        return {}

    def stop(self) -> None:
        """No effect: the trial did not start it."""


class OwnSystem(UpSystem):
    """`manage.py up` with production's time settings, on a Valkey of the trial behind its proxy.

    environment: of its processes. redis_url, database_url: direct; empty for the embedded ones."""

    def __init__(
        self,
        folder: Path,
        children: Children,
        *,
        environment: Mapping[str, str],
        redis_url: str,
        database_url: str,
        ports: Iterator[int],
    ) -> None:
        self.folder = folder
        command = [*OWN_COMMAND, "up", "--no-demo", "--data-dir", str(folder)]
        self._up: Child = children.start("up", *command, "--port", str(next(ports)), environment=environment)
        self._wait_until_ready(folder / "up.json", children.logs / "up.log")
        super().__init__(folder / "up.json")
        self.redis_url = redis_url or self.redis_url
        self.database_url = database_url or self.database_url

    def stop(self) -> None:
        """Stop it as Ctrl-C does."""
        self._up.stop(_STOP_SECONDS, by=signal.SIGINT)

    def _wait_until_ready(self, up_json: Path, log: Path) -> None:
        until = time.monotonic() + _START_SECONDS
        while not up_json.exists():
            if not self._up.is_running() or time.monotonic() > until:
                raise CannotProve(f"the trial's own system did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)


def clean_environment() -> dict[str, str]:
    """Return the environment for children, without variables that point to another dispatcher or change its
    times."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _REPLACED and not name.startswith("DISPATCHER_")
    }
