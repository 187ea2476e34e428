"""One run on this node, and the log of runs, by which tests judge the node."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_host.node.handlers import Handler, RunContext
from gpu_host.node.run_lines import RunLines


def make_id() -> str:
    """Return a new run id; the simulation replaces this function."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class RunOrder:
    """A requested run. job_id, attempt_id, slot: empty, and fence None, for direct callers. fault: of a
    simulator."""

    handler: Handler
    payload: Any
    job_id: str = ""
    attempt_id: str = ""
    from_dispatcher: bool = False
    slot: str = ""
    fence: int | None = None
    callback_url: str = ""
    callback_token: str = ""
    artifact_url: str = ""
    fault: Mapping[str, Any] | None = None


@dataclass(eq=False, slots=True)
class Run:
    """A run on this node.

    turn: set once it holds a slot, or never will. done: set after its end, once its slot is free.

    answer: the JSON that callers get. lines: its log. kept_bytes: of both, once it has ended. outcome:
    success, failed, cancelled, restarted; empty before the end.
    delivered: a caller has received the answer. output_root: parent of its folder of files.
    """

    order: RunOrder
    output_root: Path | None = None
    id: str = field(default_factory=lambda: make_id())  # noqa: PLW0108  (looked up at the call)
    began: bool = False
    outcome: str = ""
    answer: bytes = b""
    ended_monotonic: float = 0.0
    delivered: bool = False
    turn: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    lines: RunLines = field(default_factory=RunLines)
    kept_bytes: int = 0
    context: RunContext = field(init=False)
    line: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        order = self.order
        self.context = RunContext(
            model=order.handler.model,
            job_id=self.job_id,
            attempt_id=order.attempt_id,
            fault=order.fault,
            output_dir=None if self.output_root is None else self.output_root / self.id,
            on_lines=self.lines.add,
        )

    def answer_with_lines(self, after: int = 0) -> bytes:
        """Return the answer with the run's log, for a dispatcher. after: how many lines its caller has."""
        return self.lines.added_to(self.answer, after) if self.order.from_dispatcher else self.answer

    @property
    def job_id(self) -> str:
        return self.order.job_id or self.id

    @property
    def ended(self) -> bool:
        return bool(self.outcome)

    def belongs_to(self, job_id: str, attempt_id: str) -> bool:
        """Return True if the id is its job's or its own. attempt_id: empty matches any attempt."""
        if attempt_id and self.order.attempt_id != attempt_id:
            return False
        return job_id in (self.job_id, self.id)


@dataclass(slots=True)
class Counters:
    """Counters that outlive a restart. max_running: concurrent runs of dispatchers; must never exceed the
    slots. late_senders: requests with an outdated fence."""

    max_running: int = 0
    refused_503: int = 0
    late_senders: int = 0


class RunLog:
    """One line per run that held a slot, the latest `limit`; outlives a restart. Times: Unix seconds.

    file: a line is appended at once for each start, end and refusal of a run, in order: a run with ``began``
    and no ``ended`` was active when the process died."""

    def __init__(self, limit: int, file: str = "") -> None:
        self._lines: deque[dict[str, Any]] = deque(maxlen=limit)
        self._file = open(file, "a", buffering=1, encoding="utf-8") if file else None  # noqa: SIM115

    def boot(self, boot_id: str) -> None:
        """Log a boot of the node."""
        self._write("boot", {"boot_id": boot_id, "at": time.time()})

    def begin(self, run: Run, boot_id: str) -> None:
        """Log the start of a run."""
        order = run.order
        run.line = {
            "run": run.id,
            "job": order.job_id,
            "attempt": order.attempt_id,
            "model": order.handler.model,
            "slot": order.slot,
            "fence": order.fence,
            "source": "dispatcher" if order.from_dispatcher else "direct",
            "boot_id": boot_id,
            "started": time.time(),
            "ended": None,
            "outcome": None,
        }
        self._lines.append(run.line)
        self._write("began", run.line)

    def end(self, run: Run) -> None:
        """Log the end of a run."""
        run.line.update(ended=time.time(), outcome=run.outcome)
        self._write("ended", run.line)

    def refuse(self, order: RunOrder, why: str, *, running: int) -> None:
        """Log a refusal. why: ``full``, ``direct_caller``, ``stopping`` or ``stale_fence``. running: slots in
        use."""
        line = {"job": order.job_id, "attempt": order.attempt_id, "slot": order.slot, "fence": order.fence}
        source = "dispatcher" if order.from_dispatcher else "direct"
        self._write("refused", {**line, "source": source, "why": why, "running": running, "at": time.time()})

    def _write(self, what: str, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps({"what": what, **line}) + "\n")

    def lines(self) -> Iterator[str]:
        """Yield the runs as JSON lines."""
        for line in list(self._lines):
            yield json.dumps(line) + "\n"

    def entries(self) -> list[dict[str, Any]]:
        """Return copies of the runs' lines."""
        return [dict(line) for line in list(self._lines)]
