from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand, positive_seconds
from dispatcher_project.cli.screen import table
from gpus.errors import LeasingUnavailable
from gpus.leasing.keys import LAYOUT
from gpus.registry.audit import cli_actor
from jobs.operations import index_switch
from jobs.reports.fleet import index_report

NOT_DONE = 1
_STEP_SECONDS = 0.5


class Command(TerminalCommand):
    help = (
        "Show the key layout of each fleet's index in Redis, and the processes with another one. "
        "`index switch` hands the index to the processes with this code's layout, without waiting for the "
        "others to stop; `index cancel` takes that back while it is not finished."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action",
            nargs="?",
            default="status",
            choices=["status", "switch", "cancel"],
            help="default: status",
        )
        parser.add_argument("--fleet", help="only this fleet (default: all)")
        parser.add_argument("--to", type=int, default=LAYOUT, metavar="LAYOUT", help="default: this code's")
        parser.add_argument(
            "--force", action="store_true", help="switch even if no running process knows the layout"
        )
        parser.add_argument(
            "--wait",
            type=positive_seconds,
            default=120.0,
            metavar="SECONDS",
            help="limit of the wait for a switch (default 120); then exit status 1",
        )

    def act(self, options: dict[str, Any]) -> int | None:
        if options["action"] == "status":
            return self._show()
        fleets = self._fleets(options["fleet"])
        if options["action"] == "cancel":
            ports, cancelled = jobs.ports.production_ports(), {}
            for fleet in fleets:
                cancelled[fleet] = index_switch.cancel_switch(fleet, ports, by=cli_actor())
                text = "the switch is cancelled" if cancelled[fleet] else "no switch was under way"
                self._tell(f"{fleet}: {text}")
            if self.as_json:
                self.print_json({"cancelled": cancelled})
            return None
        return self._switch(fleets, options["to"], options["wait"], force=options["force"])

    def _tell(self, text: str) -> None:
        if not self.as_json:
            self.print(text)

    def _fleets(self, only: str | None) -> list[str]:
        known = list(index_report().states)
        if only is not None and only not in known:
            raise CommandError(f"no fleet is named {only}; there are {', '.join(known)}")
        return known if only is None else [only]

    def _show(self) -> int | None:
        report = index_report()
        if self.as_json:
            self.print_json(
                {
                    "layout": LAYOUT,
                    "fleets": {
                        fleet: {"layout": state.layout, "next_layout": state.next_layout}
                        for fleet, state in report.states.items()
                    },
                    "processes": [
                        {"name": one.name, "kind": one.kind, "layout": one.layout, "beat_at": one.beat_at}
                        for one in report.processes
                    ],
                }
            )
            return None
        self.print(f"this code: layout {LAYOUT}")
        for fleet, state in report.states.items():
            change = "" if state.next_layout is None else f", being switched to {state.next_layout}"
            self.print(f"{fleet}: layout {state.layout}{change}")
        if report.processes:
            rows = [(one.kind, one.name, str(one.layout)) for one in report.processes]
            self.show(table(("process", "name", "layout"), rows, right=["layout"]))
        else:
            self.print("no process is running (old versions do not register)")
        return None

    def _switch(self, fleets: list[str], layout: int, wait: float, *, force: bool) -> int | None:
        if not force and not index_report().can_take_over(layout):
            raise CommandError(
                f"no GPU worker and sweeps worker with layout {layout} are running, so no job would start: "
                "start them first, or add --force"
            )
        ports = jobs.ports.production_ports()
        for fleet in fleets:
            index_switch.begin_switch(fleet, layout, by=cli_actor())
        deadline, shown, left = time.monotonic() + wait, "", list(fleets)
        is_late = False
        while left and not is_late:
            try:
                progress = index_switch.continue_switch(left[0], ports)
                waits = ", ".join(progress.waits_for)
            except LeasingUnavailable as error:
                progress, waits = index_switch.Progress(done=False), str(error)
            if progress.done:
                self._tell(f"{left.pop(0)}: layout {layout}")
                continue
            if waits != shown:
                shown = waits
                self._tell(f"{left[0]} waits for {waits}")
            is_late = time.monotonic() >= deadline
            if not is_late:
                time.sleep(_STEP_SECONDS)
        if self.as_json:
            switched = [fleet for fleet in fleets if fleet not in left]
            self.print_json(
                {"layout": layout, "switched": switched, "left": left, "waits_for": shown if left else ""}
            )
        elif left:
            self.print("the sweeps worker continues the switch; `index cancel` takes it back")
        return NOT_DONE if left else None
