"""A worker without a GPU server: it holds the models itself."""

from __future__ import annotations

import signal
from pathlib import Path

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
        with (system.folder / "log" / f"{name}.log").open("ab") as log:
            self.process = system.start_worker(
                *("--gpu", "none", "--models", models, "--name", name, "--slots", str(slots)),
                *("--budget-mb", str(budget_mb), "--ready-file", str(self._ready)),
                *(("--pool", pool) if pool else ()),
                data_folder=folder / "var",
                log=log,
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
