"""Two checkouts in one run: ``python -m benchmarks.beside OTHER_CHECKOUT [--rounds N]``.

Cost and speed of a job in this checkout, as ratios to another one: an older commit in a worktree of its own,
with its own `.venv`. On a machine whose speed changes by a third from minute to minute, two runs one after
the other can't be compared to a few percent. Here both `up`s run at once, each with its own data folder and
simulated GPU server, and take turns: the same burst of jobs to the one and to the other, in changing order.
Each round gives one ratio of each figure; printed are the median of the rounds and the middle half of them.

    cpu …            CPU seconds per job of one process of `up`, or of all of them
    submit seconds   from the first submit of a burst to the last answer
    drain seconds    from the opened gate, with all slots and the queue full, to the last end: utilisation
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.suite.contenders import Dispatcher
from benchmarks.suite.cpu import running_cpu_seconds
from benchmarks.suite.environment import SQLITE, BenchEnvironment, CannotMeasure
from benchmarks.suite.gpu import NotDone
from dispatcher_project.supervisor.data_folder import ROOT

SLOTS = 8
BURSTS = {"single": (150, 0.05), "batch": (1000, 0.01)}
"""Jobs of a burst and their seconds: submitted one by one over one connection, or 100 at a time."""
_WAIT_SECONDS, _SETTLE_SECONDS = 60.0, 0.7
_LEAST_ROUNDS = 4
_LEAST_SECONDS = 2e-5
"""A figure below that is noise."""

Figures = dict[str, float]


class Side:
    """The `up` of a checkout, with one server of the simulated GPU."""

    def __init__(self, name: str, checkout: Path, env: BenchEnvironment) -> None:
        self.name, self._gpu, self._submitted = name, env.gpu, 0
        self.dispatcher = Dispatcher(env, checkout=checkout)
        self.dispatcher.start(SLOTS)

    def burst(self, way: str) -> Figures:
        """Submit jobs while a gate holds the first of them, then open it. Raises CannotMeasure, NotDone."""
        count, seconds = BURSTS[way]
        jobs = [(self._submitted + number, seconds) for number in range(count)]
        self._submitted += count
        self._gpu.begin(SLOTS, gate=True)
        before, began = self._cpu(), time.monotonic()
        (self.dispatcher.submit_singly if way == "single" else self.dispatcher.fill)(jobs)
        submitted = time.monotonic()
        self._gpu.wait_for("held", SLOTS, _WAIT_SECONDS, self.dispatcher.check)
        opened = time.monotonic()
        self._gpu.open_gate()
        self._gpu.wait_for("ended", count, _WAIT_SECONDS, self.dispatcher.check)
        drained = time.monotonic()
        time.sleep(_SETTLE_SECONDS)
        after = self._cpu()
        return {
            **{f"cpu {name}": (after[name] - before[name]) / count for name in before if name in after},
            "submit seconds": submitted - began,
            "drain seconds": drained - opened,
        }

    def _cpu(self) -> Figures:
        pids = {name: pid for name, pid in self.dispatcher.system.pids().items() if name != "up"}
        found = {name: running_cpu_seconds([pid]) for name, pid in pids.items()}
        return {**found, "all": sum(found.values())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description=__doc__.split("\n")[0])
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=24, help=f"at least {_LEAST_ROUNDS}")
    parser.add_argument("--only", choices=[*BURSTS], help="one kind of burst (default: both)")
    options = parser.parse_args()
    if options.rounds < _LEAST_ROUNDS:
        parser.error(f"--rounds: at least {_LEAST_ROUNDS}, for a middle half")
    other = options.other.resolve()
    if not (other / ".venv/bin/python").exists():
        parser.error(f"{other} has no .venv; run `python3 manage.py help` there")
    try:
        with contextlib.ExitStack() as stack:
            sides = [_begin(name, path, stack) for name, path in (("other", other), ("this", ROOT))]
            for side in sides:
                side.dispatcher.warm_up()
            for way in [options.only] if options.only else BURSTS:
                show(way, list(rounds(sides, way, options.rounds)))
    except (CannotMeasure, NotDone) as error:
        sys.exit(f"beside: {error}")


def _begin(name: str, checkout: Path, stack: contextlib.ExitStack) -> Side:
    env = BenchEnvironment(SQLITE)
    stack.callback(env.close)
    side = Side(name, checkout, env)
    stack.callback(side.dispatcher.stop)
    return side


def rounds(sides: list[Side], way: str, count: int) -> Iterator[tuple[Figures, Figures]]:
    """Yield (other, this) of each round but the first."""
    for number in range(count + 1):
        found = {side.name: side.burst(way) for side in (sides if number % 2 else sides[::-1])}
        if number:
            yield found["other"], found["this"]


def show(way: str, found: list[tuple[Figures, Figures]]) -> None:
    """Print the ratios of all rounds."""
    print(f"{way:<8} {'figure':<18} {'other':>10} {'this':>10} {'this / other':>13}   middle half")
    for name in found[0][0]:
        pairs = [(before[name], after[name]) for before, after in found if name in before and name in after]
        others, ours = (statistics.median(values) for values in zip(*pairs, strict=True))
        ratios = [after / before for before, after in pairs if before > 0]
        if others < _LEAST_SECONDS or len(ratios) < _LEAST_ROUNDS:
            continue
        low, middle, high = statistics.quantiles(ratios, n=4)
        unit = 1.0 if "seconds" in name else 1000.0  # CPU in milliseconds
        print(
            f"{way:<8} {name:<18} {others * unit:>10.3f} {ours * unit:>10.3f} {middle:>13.3f}   "
            f"{low:.3f} to {high:.3f}"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
