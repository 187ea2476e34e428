from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.runs import (
    end_status,
    event_line,
    find_run,
    new_events,
    newest_nodes,
    node_documents,
    node_table,
    run_document,
    run_lines,
)
from gpus.registry.audit import cli_actor, record
from workflows import operations
from workflows.domain.states import RunState
from workflows.models import Run

_LOOK_SECONDS = 0.5
_ACTS = ("cancel", "pause", "resume", "retry")


class Command(TerminalCommand):
    help = (
        "Show a run of a workflow: status, nodes, what it waits for; or cancel, pause, resume or retry it. "
        "Exit status with --follow: 1 the run failed or was cancelled."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", metavar="ID", help="id of the run")
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--follow", action="store_true", help="show nodes as they start and end")
        what.add_argument("--nodes", action="store_true", help="show the children of maps too")
        what.add_argument("--cancel", action="store_true", help="cancel the run and its jobs")
        what.add_argument("--pause", action="store_true", help="start no further nodes")
        what.add_argument("--resume", action="store_true", help="start nodes again")
        what.add_argument("--retry", action="store_true", help="run failed and cancelled nodes again")
        parser.add_argument(
            "--node", action="append", metavar="KEY", help="with --retry: this node; may be repeated"
        )

    def act(self, options: dict[str, Any]) -> int | None:
        run = find_run(options["id"])
        if options["node"] and not options["retry"]:
            raise CommandError("--node is for --retry")
        for name in _ACTS:
            if options[name]:
                self._do(name, run, options["node"])
                return None
        if options["follow"]:
            return self._follow(run)
        self._show(run, with_children=options["nodes"])
        return None

    def _do(self, name: str, run: Run, nodes: list[str] | None) -> None:
        ports = jobs.ports.production_ports()
        if name == "retry":
            operations.restart_run(run.id, keys=nodes, ports=ports)
        else:
            act = {
                "cancel": operations.cancel_run,
                "pause": operations.pause_run,
                "resume": operations.resume_run,
            }[name]
            act(run.id, ports=ports)
        record(cli_actor(), f"{name}_run", f"run:{run.id}", **({"nodes": nodes} if nodes else {}))
        run = find_run(run.id)
        said = {
            "cancel": "is being cancelled",
            "pause": "starts no further nodes",
            "resume": "goes on",
            "retry": f"runs again, round {run.round}",
        }[name]
        self.report(run_document(run), f"{run.id} {said}")

    def _show(self, run: Run, *, with_children: bool) -> None:
        nodes = newest_nodes(run, with_children=with_children)
        if self.as_json:
            self.print_json({**run_document(run), "nodes": node_documents(nodes)})
            return
        now = jobs.ports.production_ports().clock.now()
        self.show(*run_lines(run, now), "", node_table(run, nodes, now))

    def _follow(self, run: Run) -> int | None:
        """Print events as they are committed, until the run ends."""
        after = 0
        while True:
            run = find_run(run.id)  # read before the events: the last are among them
            for event in new_events(run, after):
                after = event.seq
                if self.as_json:
                    self.print_json({"type": event.type, "at": event.at, "data": event.data})
                else:
                    self.show(event_line(event))
            if run.state != RunState.RUNNING:
                break
            time.sleep(_LOOK_SECONDS)
        self._show(run, with_children=False)
        return end_status(run)
