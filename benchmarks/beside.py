"""Two checkouts in one run: ``python -m benchmarks.beside OTHER_CHECKOUT [--rounds N]``.

What a job costs and how fast jobs come through, this checkout by another one: an older commit in a worktree
of its own, with its own `.venv`. On a machine whose speed changes by a third from minute to minute, two whole
runs one after the other can't be compared to a few percent. Here both `up`s run at once, each on its own data
folder and simulated GPU server, and take turns: a burst of jobs to the one, the same burst to the other, in
changing order. Each round gives one ratio of each figure; printed are the median of the rounds and the middle
half of them.

    cpu …            CPU time a job of one process of `up`, or of all of them
    submit seconds   from the first submit of a burst to the last answer
    drain seconds    from the opened gate of full slots and a full line to the last end: utilisation
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.suite.cpu import tree
from benchmarks.suite.gpu import Gpu
from dispatcher_project.supervisor.data_folder import ROOT
from verification.proving.children import Child, Children
from verification.proving.system import UpSystem

SLOTS, BATCH_JOBS = 8, 100
BURSTS = {"single": (150, 0.05), "batch": (1000, 0.01)}
"""Jobs of a burst and their seconds: submitted one by one over one connection, or 100 at a time."""
_CPU_CLOCK = 2
_START_SECONDS, _PATIENCE_SECONDS, _SETTLE_SECONDS = 90.0, 60.0, 0.7
_FORGOTTEN = ("DJANGO_SETTINGS_MODULE", "DATABASE_URL", "REDIS_URL", "PYTHONPATH")

Figures = dict[str, float]


class Side:
    """A checkout's `up`, with one server of the simulated GPU."""

    def __init__(
        self, name: str, checkout: Path, folder: Path, children: Children, ports: Iterator[int]
    ) -> None:
        self.name, self.gpu, self._done = name, Gpu(children, next(ports)), 0
        python = checkout / ".venv" / "bin" / "python"
        command = [str(python), "manage.py", "up", "--no-demo", "--data-dir", str(folder)]
        self._up: Child = children.start(f"up-{name}", *command, "--port", str(next(ports)), folder=checkout)
        ready, until = folder / "up.json", time.monotonic() + _START_SECONDS
        while not ready.exists():
            if not self._up.is_running() or time.monotonic() > until:
                raise SystemExit(f"{name}: `up` did not start; see {children.logs}/up-{name}.log")
            time.sleep(0.05)
        self._system = UpSystem(ready)
        self._connection = http.client.HTTPConnection(urlsplit(self._system.url).netloc, timeout=60)
        server = {"model": "bench", "server": "bench-1", "endpoint": f"{self.gpu.url}/run", "slots": SLOTS}
        self.gpu.begin(SLOTS, gate=False)
        self._ask("/admin/register", {**server, "max_run_seconds": 300.0, "max_poll_time": 300.0})

    def burst(self, way: str) -> Figures:
        """Jobs submitted while a gate holds the first of them, and then let through."""
        count, seconds = BURSTS[way]
        self.gpu.begin(SLOTS, gate=True)
        self._connection.close()  # the server has ended it while the other side had its turn
        before, began = self._cpu(), time.monotonic()
        jobs = [
            {"model": "bench", "payload": {"job": self._done + n, "seconds": seconds}} for n in range(count)
        ]
        if way == "single":
            for job in jobs:
                self._ask("/queue/submit", job)
        else:
            for at in range(0, count, BATCH_JOBS):
                self._ask("/queue/submit-batch", {"jobs": jobs[at : at + BATCH_JOBS]})
        submitted = time.monotonic()
        self.gpu.wait_for("held", SLOTS, _PATIENCE_SECONDS, self._check)
        opened = time.monotonic()
        self.gpu.open_gate()
        self.gpu.wait_for("ended", count, _PATIENCE_SECONDS, self._check)
        drained = time.monotonic()
        time.sleep(_SETTLE_SECONDS)
        after = self._cpu()
        self._done += count
        return {
            **{f"cpu {name}": (after[name] - before[name]) / count for name in before if name in after},
            "submit seconds": submitted - began,
            "drain seconds": drained - opened,
        }

    def stop(self) -> None:
        self._connection.close()
        self._up.stop(30.0, by=signal.SIGINT)
        self.gpu.stop()

    def _cpu(self) -> Figures:
        pids = self._system.pids()
        pids.pop("up", None)
        found = {name: sum(map(_cpu_seconds, tree([pid]))) for name, pid in pids.items()}
        return {**found, "all": sum(found.values())}

    def _check(self) -> None:
        if not self._up.is_running():
            raise SystemExit(f"{self.name}: `up` has ended")

    def _ask(self, path: str, body: Any) -> None:
        headers = {"Authorization": f"Bearer {self._system.operator_key}", "Content-Type": "application/json"}
        self._connection.request("POST", f"/api/v1{path}", json.dumps(body), headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise SystemExit(f"{self.name}: {path} was answered {answer.status}: {text[:300]!r}")


def _cpu_seconds(pid: int) -> float:
    """To the nanosecond, where /proc counts in hundredths. The clock id as in clock_getcpuclockid(3)."""
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | _CPU_CLOCK)
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__.split("\n")[0])
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--only", choices=[*BURSTS], help="one kind of burst (default: both)")
    options = parser.parse_args()
    other = options.other.resolve()
    if not (other / ".venv/bin/python").exists():
        parser.error(f"{other} has no .venv; run `python3 manage.py help` there")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="beside-")))
        kept = {name: value for name, value in os.environ.items() if name not in _FORGOTTEN}
        children = Children(folder / "logs", kept)
        ports = iter(range(15600, 15700))
        sides = []
        for name, checkout in (("other", other), ("this", ROOT)):
            side = Side(name, checkout, folder / name, children, ports)
            stack.callback(side.stop)
            sides.append(side)
        time.sleep(
            20.0
        )  # an index just made confirms each start, and both have their first sweeps behind them
        for way in [options.only] if options.only else BURSTS:
            show(way, list(rounds(sides, way, options.rounds)))


def rounds(sides: list[Side], way: str, count: int) -> Iterator[tuple[Figures, Figures]]:
    """(other, this) of each round; the first one is thrown away."""
    for number in range(count + 1):
        found = {side.name: side.burst(way) for side in (sides if number % 2 else sides[::-1])}
        if number:
            yield found["other"], found["this"]


def show(way: str, found: list[tuple[Figures, Figures]]) -> None:
    print(f"{way:<8} {'figure':<18} {'other':>10} {'this':>10} {'this / other':>13}   middle half")
    for name in found[0][0]:
        pairs = [(before[name], after[name]) for before, after in found if name in before and name in after]
        others, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
        ratios = [after / before for before, after in pairs if before > 0]
        if others * 1000 < 0.02 or len(ratios) < 4:
            continue  # next to nothing
        low, middle, high = statistics.quantiles(ratios, n=4)
        unit = 1.0 if "seconds" in name else 1000.0
        print(
            f"{way:<8} {name:<18} {others * unit:>10.3f} {ours * unit:>10.3f} {middle:>13.3f}   "
            f"{low:.3f} to {high:.3f}"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
