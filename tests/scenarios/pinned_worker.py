"""A worker without a GPU server: it holds the models itself."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from dispatcher_project.supervisor.data_folder import ROOT
from dispatcher_project.supervisor.embedded import die_with_parent
from gpu_host.local.device import session_pids
from tests.scenarios.pinned_models import BUDGET_MB
from tests.support.system.running import System
from tests.support.waiting import wait_for


class PinnedWorker:
    """name: of its server. Starts at once; `wait` for it."""

    def __init__(
        self,
        system: System,
        name: str,
        folder: Path,
        *,
        slots: int = 1,
        models: str = "tests.scenarios.pinned_models",
        budget_mb: int = BUDGET_MB,
        pool: str = "",
    ) -> None:
        self.name = name
        self._ready = folder / f"{name}.ready"
        self._ready.unlink(missing_ok=True)
        shared = json.loads((system.folder / "environment.json").read_text())
        command = [
            sys.executable, "manage.py", "gpu_worker", "--gpu", "none",
            "--models", models, "--name", name, "--slots", str(slots),
            "--budget-mb", str(budget_mb), "--ready-file", str(self._ready),
            *(("--pool", pool) if pool else ()),
        ]  # fmt: skip
        with (system.folder / "log" / f"{name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={
                    **system.environment,
                    **shared,
                    "DISPATCHER_DATA_DIR": str(folder / "var"),
                    "DJANGO_SETTINGS_MODULE": "dispatcher_project.settings.production",
                    "DJANGO_SECRET_KEY": (system.folder / "secret_key").read_text().strip(),
                },
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )

    def wait(self) -> PinnedWorker:
        wait_for(
            lambda: self._ready.exists() or self.process.poll() is not None, what=f"{self.name} to be ready"
        )
        assert self.process.poll() is None, "it ended"
        return self

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """As a deploy does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def model_process(self) -> int:
        """The process that holds the models, 0 while there is none."""
        for warden in _children(self.process.pid):
            for child in _children(warden):
                return child
        return 0

    def session(self) -> int:
        return next(iter(_children(self.process.pid)), 0)

    def left(self, session: int) -> list[int]:
        return session_pids(session)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
