"""`manage.py simulate`: the real protocol under virtual time and many faults; every seed is a history."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatcher_project.cli.arguments import HIDDEN_OPTIONS, positive
from dispatcher_project.cli.command import INTERRUPTED, WRONG
from foundation.program import command_line
from foundation.texts import counted
from verification.simulation.campaign import verdicts
from verification.simulation.nemesis import FAULTS as KINDS
from verification.simulation.run import Verdict
from verification.simulation.size import Size

PROGRESS_SECONDS = 30.0
RUNS, SCHEDULES, EDITED, FILES = 1, 2, 1, 2
SHOWN_LAWS, SHOWN_STEPS = 10, 40
BROKEN, NOT_PLAYED = 1, 3
"""Exit statuses: a law was broken; the seeds could not be played."""


class Command(BaseCommand):
    """`manage.py simulate`: run the simulator for many seeds, or for a single one."""

    help = (
        "Play the dispatcher's own protocol under virtual time, with crashes at every step, and check the "
        "laws of docs/explanation/simulation.md afterwards. A seed replays exactly."
    )
    suppressed_base_arguments = HIDDEN_OPTIONS | {"--skip-checks"}

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seeds", type=positive, default=200, help="number of seeds (default 200)")
        parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
        parser.add_argument("--seed", type=int, help="play only this seed, and show its faults")
        parser.add_argument("--jobs", type=positive, default=Size().jobs, help="jobs per seed (default 40)")
        parser.add_argument("--faults", type=int, default=Size().faults, help="faults per seed (default 20)")
        parser.add_argument(
            "--runs",
            type=int,
            default=RUNS,
            help=f"runs of workflows per seed, beside the jobs (default {RUNS})",
        )
        parser.add_argument(
            "--schedules",
            type=int,
            default=SCHEDULES,
            help=f"schedules per seed, through a night with a change of the clocks (default {SCHEDULES})",
        )
        parser.add_argument(
            "--edited",
            type=int,
            default=EDITED,
            help="further schedules per seed that people change, delete, trigger and backfill; none with "
            f"--schedules 0 (default {EDITED})",
        )
        parser.add_argument(
            "--files",
            type=int,
            default=FILES,
            help=f"jobs with a file and a long result per seed, beside the others (default {FILES})",
        )
        parser.add_argument("--only", default="", metavar="A,B", help="use only these faults")
        parser.add_argument(
            "--processes", type=positive, default=os.cpu_count() or 1, help="default: one per core"
        )
        parser.add_argument(
            "--history", type=Path, metavar="FILE", help="with --seed: write every step to this file"
        )

    def handle(self, **options: Any) -> None:
        names = tuple(name for name in options["only"].split(",") if name)
        if unknown := sorted(set(names) - set(KINDS)):
            raise CommandError(
                f"no fault is named {', '.join(unknown)}; there are {', '.join(sorted(KINDS))}",
                returncode=WRONG,
            )
        if options["faults"] < 0:
            raise CommandError("--faults must not be negative", returncode=WRONG)
        one = options["seed"]
        size = Size(
            options["jobs"],
            options["faults"],
            names,
            one is not None,
            max(options["runs"], 0),
            max(options["schedules"], 0),
            max(options["edited"], 0),
            max(options["files"], 0),
        )
        seeds = [one] if one is not None else range(options["first"], options["first"] + options["seeds"])
        processes = min(options["processes"], len(seeds))
        began, cost, broken = time.monotonic(), Counter[str](), list[int]()
        reported_at = began
        try:
            for played, verdict in enumerate(verdicts(seeds, size, processes=processes), 1):
                cost.update(verdict.cost)
                if time.monotonic() - reported_at >= PROGRESS_SECONDS:
                    reported_at = time.monotonic()
                    self._progress(played, len(seeds), reported_at - began, len(broken))
                if verdict.broken:
                    broken.append(verdict.seed)
                    self._show(verdict, size, options["history"])
                elif one is not None:
                    self._show(verdict, size, options["history"])
        except KeyboardInterrupt:
            raise CommandError("interrupted", returncode=INTERRUPTED) from None
        except RuntimeError as error:
            raise CommandError(str(error), returncode=NOT_PLAYED) from None
        took = time.monotonic() - began
        self.stdout.write(
            f"{counted(len(seeds), 'seed')} in {took:.1f} s ({len(seeds) / took:.1f} a second): "
            f"{cost['jobs']} jobs, {cost['gpu_runs']} runs on GPUs, {cost['attempts_lost']} attempts lost, "
            f"{cost['runs']} runs of workflows with {cost['nodes']} nodes, "
            f"{cost['firings']} firings of schedules, "
            f"{cost['artifacts']} artifacts with {cost['store_requests']} requests to the store, "
            f"{cost['quarantined']} slots quarantined, {cost['late_senders']} late senders refused; "
            + (f"{counted(len(broken), 'seed')} broke a law: {broken[:20]}" if broken else "no law broken")
        )
        if broken:
            sys.exit(BROKEN)

    def _progress(self, played: int, of: int, seconds: float, broken: int) -> None:
        self.stdout.write(f"{played} of {of} seeds, {played / seconds:.1f} a second, {broken} broke a law")
        self.stdout.flush()

    def _show(self, verdict: Verdict, size: Size, history: Path | None) -> None:
        self.stdout.write(f"seed {verdict.seed}: {'BROKEN' if verdict.broken else 'good'}, {verdict.cost}")
        for law in verdict.broken[:SHOWN_LAWS]:
            self.stdout.write(f"  {law}")
        for planned in verdict.plan:
            self.stdout.write(f"  {planned.at:8.3f}  {planned.name}")
        steps = [f"{at:10.4f} {actor:<12} {what}\n" for at, actor, what in verdict.history]
        if history is not None and steps:
            history.write_text("".join(steps))
            self.stdout.write(f"  all {len(steps)} steps: {history}")
        elif verdict.broken:
            self.stdout.write("  the last steps:\n" + "".join(f"  {step}" for step in steps[-SHOWN_STEPS:]))
        only = f" --only {','.join(size.names)}" if size.names else ""
        self.stdout.write(
            f"  replay: {command_line('simulate')} --seed {verdict.seed} --jobs {size.jobs} "
            f"--faults {size.faults} --runs {size.runs} --schedules {size.schedules} "
            f"--edited {size.edited} --files {size.files}"
            f"{only} --history steps.txt"
        )
