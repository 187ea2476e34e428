"""Benefit of warm affinity, and its delay for the first job in the queue: with the real scripts, under
virtual time.

    python -m benchmarks.affinity                        a million dispatches
    python -m benchmarks.affinity --dispatches 50000

Four GPUs run eight models, whose jobs are drawn by Zipf's law into one queue that is never empty; a job takes
a second, and ten more if another model ran before. Goals (exit status 1 if one is missed):

- the first job is passed over at most eight times, and never after 30 s from when it could have started: no
  violation in all dispatches;
- 60 % of the swaps of the same queue without affinity are saved.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.virtual_fleet import VirtualFleet, VirtualJob
from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.leasing.connect import connect
from gpus.protocol import QueueAlgorithm, ServerSpec

GPUS, MODELS, RUN_SECONDS, SWAP_SECONDS = 4, 8, 1.0, 10.0
WAITING, PATIENCE_SECONDS, MAX_SKIPS, GOAL = 60, 30.0, 8, 0.6


@dataclass
class OrderChecker:
    """Checks the queue from outside: in which order jobs came, and which one started."""

    fleet: VirtualFleet
    patience: float
    line: deque[VirtualJob] = field(default_factory=deque)
    skipped: dict[str, tuple[int, float]] = field(default_factory=dict)
    violations: int = 0
    longest_delay: float = 0.0

    def started(self, job: VirtualJob) -> None:
        """Check a start against the order of the queue."""
        while self.line and self.line[0].started_at >= 0 and self.line[0] is not job:
            self.line.popleft()
        head = self.line[0]
        if head is job:
            self.line.popleft()
            _, since = self.skipped.pop(job.id, (0, self.fleet.now))
            self.longest_delay = max(self.longest_delay, self.fleet.now - since)
            return
        count, since = self.skipped.get(head.id, (0, self.fleet.now))
        if count >= MAX_SKIPS or (count and self.fleet.now - since >= self.patience):
            self.violations += 1
        self.skipped[head.id] = count + 1, since


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a measurement. swaps: per dispatch. longest_delay: of a first job, from when it could
    have started, seconds."""

    dispatches: int
    swaps: float
    violations: int
    longest_delay: float


def measure(client: Any, dispatches: int, *, patience: float = PATIENCE_SECONDS, seed: int = 1) -> Result:
    """Dispatch jobs and check the order of each."""
    chance = random.Random(seed)
    models = [f"model-{number}" for number in range(1, MODELS + 1)]
    shares = [1 / number for number in range(1, MODELS + 1)]
    swaps = 0

    def cost(job: VirtualJob, warm: str | None) -> float:
        nonlocal swaps
        swaps += warm != job.model
        return job.seconds + (SWAP_SECONDS if warm != job.model else 0.0)

    def on_start(job: VirtualJob) -> None:
        checker.started(job)
        if fleet.waiting[job.tenant] <= WAITING // 2:
            more()

    def more() -> None:
        came = [
            fleet.job("tenant", RUN_SECONDS, model=model)
            for model in chance.choices(models, shares, k=WAITING - fleet.waiting.get("tenant", 0))
        ]
        checker.line.extend(came)
        fleet.submit_all(came)

    fleet = VirtualFleet(
        client,
        f"affinity-{patience:.0f}",
        [ServerSpec(f"gpu-{number}", "bench", 1, tuple(models)) for number in range(GPUS)],
        algorithm=QueueAlgorithm.FIFO,
        patience_seconds=patience,
        renew_seconds=60.0,
        cost=cost,
        on_start=on_start,
    )
    checker = OrderChecker(fleet, patience)
    more()
    fleet.open()
    while fleet.dispatches < dispatches:
        before = fleet.dispatches
        fleet.run(fleet.now + 1000)
        if before // 100_000 < fleet.dispatches // 100_000:
            print(f"{fleet.dispatches:,}: {checker.violations} violations", file=sys.stderr, flush=True)
    return Result(fleet.dispatches, swaps / fleet.dispatches, checker.violations, checker.longest_delay)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dispatches", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedValkey(Path(folder), append_only=False) as server:
        client = connect(server.url)
        fifo = measure(client, max(1000, arguments.dispatches // 20), patience=0.0, seed=arguments.seed)
        warm = measure(client, arguments.dispatches, seed=arguments.seed)
    saved = 1 - warm.swaps / fifo.swaps
    print(
        f"{warm.dispatches:,} dispatches: {warm.violations} violations, a first one was delayed by"
        f" {warm.longest_delay:.1f} s at most · swaps {warm.swaps:.1%} of jobs,"
        f" without affinity {fifo.swaps:.1%}: {saved:.1%} saved"
    )
    sys.exit(warm.violations > 0 or saved < GOAL)


if __name__ == "__main__":
    main()
