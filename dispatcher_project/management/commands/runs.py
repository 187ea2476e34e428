from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

import jobs.ports
from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.runs import run_summaries, run_table
from workflows.domain.states import RunState
from workflows.models import Run


class Command(TerminalCommand):
    help = "List runs of workflows, the newest first. `run ID` shows one, `answer` what waits for a person."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--status", choices=[state.value for state in RunState], help="filter")
        parser.add_argument("--workflow", metavar="NAME", help="filter")
        parser.add_argument("--tenant", help="filter")
        parser.add_argument("--limit", type=positive, default=20, help="rows (default 20)")

    def act(self, options: dict[str, Any]) -> int | None:
        rows = Run.objects.select_related("version__workflow", "tenant").defer(
            "inputs", "output", "kept_maps"
        )
        if options["status"]:
            rows = rows.filter(state=options["status"])
        if options["workflow"]:
            rows = rows.filter(version__workflow__name=options["workflow"])
        if options["tenant"]:
            rows = rows.filter(tenant=tenant_named(options["tenant"]))
        runs = list(rows.order_by("-id")[: options["limit"]])
        if self.as_json:
            self.print_json({"results": run_summaries(runs)})
        elif runs:
            self.show(run_table(runs, jobs.ports.production_ports().clock.now()))
        else:
            self.print("no runs; `workflow run NAME` starts one")
        return None
