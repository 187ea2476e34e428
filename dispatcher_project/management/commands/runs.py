from __future__ import annotations

import argparse
from typing import Any

from django.core.management.base import CommandParser

import jobs.ports
from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.paging import newest_page
from dispatcher_project.cli.runs import operator, run_summaries, run_table
from foundation.ids import is_id
from workflows.api.base import runs_visible_to
from workflows.domain.states import RunState
from workflows.reports.runs import ANY, NONE, RUN_FILTERS, RunFilter


class Command(TerminalCommand):
    help = "List runs of workflows, the newest first. `run ID` shows one, `answer` what waits for a person."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("--status", choices=[state.value for state in RunState], help="filter")
        parser.add_argument("--workflow", metavar="NAME", help="filter")
        parser.add_argument("--tenant", help="filter")
        parser.add_argument("--tag", help="filter")
        parser.add_argument(
            "--parent",
            metavar="ID",
            type=_parent,
            help="sub-runs of this run; `any`: all sub-runs, too (default: none, but any with --waiting)",
        )
        parser.add_argument("--paused", action="store_true", default=None, help="filter")
        parser.add_argument(
            "--waiting", action="store_true", default=None, help="filter: for a person or a signal"
        )
        parser.add_argument("--before", metavar="ID", help="only runs older than this one: the next page")
        parser.add_argument("--limit", type=positive, default=20, help="rows (default 20)")

    def act(self, options: dict[str, Any]) -> int | None:
        wanted = RunFilter(**{name: options[name] for name in RUN_FILTERS})
        rows = wanted.of(runs_visible_to(operator())).select_related("tenant")
        if options["tenant"]:  # by its id: the index of a tenant's runs has their order
            rows = rows.filter(tenant=tenant_named(options["tenant"]).pk)
        runs, last = newest_page(rows.defer("inputs", "output", "kept_maps"), options)
        if self.as_json:
            self.print_json({"results": run_summaries(runs), "before": last})
        elif runs:
            self.show(run_table(runs, jobs.ports.production_ports().clock.now()))
            if last is not None:
                self.print(f"… older ones: --before {last}")
        elif any(options[name] for name in ("before", "tenant", *RUN_FILTERS)):
            self.print("no run matches")
        else:
            self.print("no runs; `workflow run NAME` starts one")
        return None


def _parent(text: str) -> str:
    if text in (NONE, ANY):
        return text
    if is_id(text.upper()):
        return text.upper()
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither {NONE}, {ANY} nor the id of a run")
