"""``python -m benchmarks.idle``: the cost of an idle `up`, process by process (Linux).

Memory is the proportional set size (PSS): a page that several processes share counts once over all of them,
so that the sum is the memory that their end would free. CPU is of one core, over the measured seconds."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.suite.cpu import cpu_seconds, tree
from dispatcher_project.supervisor.data_folder import DataFolder, default_folder
from verification.proving.memory import resident_bytes

SECONDS = 60.0
UP, ALL = "up", "all"
_MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """Memory and CPU of a process and its descendants. core_share: 0.05 is five hundredths of a core."""

    pss_mb: float
    rss_mb: float
    core_share: float

    def less(self, others: Sequence[Cost]) -> Cost:
        """Return the cost without that of these others."""
        return Cost(
            self.pss_mb - sum(one.pss_mb for one in others),
            self.rss_mb - sum(one.rss_mb for one in others),
            self.core_share - sum(one.core_share for one in others),
        )


def measure_processes(pids: Mapping[str, int], seconds: float = SECONDS) -> dict[str, Cost]:
    """Return the cost by name, the highest first; `ALL` is the sum. Raises ValueError if a process exited.

    pids: of up.json; the others are children of the one called `UP`."""
    roots = {ALL: pids[UP], **{name: pid for name, pid in pids.items() if name != UP}}
    before = {name: cpu_seconds([pid]) for name, pid in roots.items()}
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    found = {}
    for name, pid in roots.items():
        members = tree([pid])
        cost = Cost(
            sum(map(proportional_bytes, members)) / _MEGABYTE,
            sum(map(resident_bytes, members)) / _MEGABYTE,
            (cpu_seconds([pid]) - before[name]) / took,
        )
        if not cost.rss_mb:
            raise ValueError(f"{name} ({pid}) has ended")
        found[name] = cost
    whole = found.pop(ALL)
    found[UP] = whole.less(list(found.values()))
    return {**dict(sorted(found.items(), key=lambda one: -one[1].pss_mb)), ALL: whole}


def proportional_bytes(pid: int) -> int:
    """Return the PSS, or the resident size if the kernel has no PSS; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resident_bytes(pid)


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or 1 with a line if no `up` runs there."""
    given = _parser().parse_args(arguments)
    pids = DataFolder(given.data_dir).read("up.json").get("pids", {})
    if not pids:
        sys.stderr.write(f"idle: no `up` is ready on {given.data_dir}\n")
        return 1
    load = os.getloadavg()[0]
    try:
        found = measure_processes(pids, given.seconds)
    except ValueError as error:
        sys.stderr.write(f"idle: {error}\n")
        return 1
    for name, cost in found.items():
        share = max(cost.core_share, 0.0)  # a difference of clocks that tick
        print(f"{name:<11}{cost.pss_mb:8.1f} MB PSS{cost.rss_mb:9.1f} MB RSS{share:9.2%} of a core")
    print(f"over {given.seconds:g} s; the machine's load: {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    return 0


def _parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    arguments.add_argument("--data-dir", type=Path, default=default_folder(), help="data folder of the `up`")
    arguments.add_argument(
        "--seconds", type=float, default=SECONDS, help="duration of the measurement (default %(default)s)"
    )
    return arguments


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
