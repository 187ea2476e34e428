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
    why_lines,
)
from gpus.registry.audit import cli_actor
from workflows.api.explain_view import explanation_json
from workflows.domain.states import RunState
from workflows.models import Run
from workflows.operations.control import cancel_run, pause_run, resume_run
from workflows.operations.erase import erase_run_data
from workflows.operations.restart import restart_run

_LOOK_SECONDS = 0.5
_EXPLAINED = ("reasons", "ends_in", "cost")
_ACTS = ("cancel", "pause", "resume", "restart")


class Command(TerminalCommand):
    help = (
        "Show a run of a workflow: status, nodes, why it waits, when it will end, its GPU time; or cancel, "
        "pause, resume or restart it, or erase its data. Exit status with --follow: 1 the run failed or was "
        "cancelled."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", metavar="ID", help="id of the run")
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--follow", action="store_true", help="show nodes as they start and end")
        what.add_argument("--nodes", action="store_true", help="show the children of maps too")
        what.add_argument("--cancel", action="store_true", help="cancel the run and its jobs")
        what.add_argument("--pause", action="store_true", help="start no further nodes")
        what.add_argument("--resume", action="store_true", help="start nodes again")
        what.add_argument("--restart", action="store_true", help="run failed and cancelled nodes again")
        what.add_argument(
            "--erase",
            action="store_true",
            help="erase what the ended run, its jobs and sub-runs were given and made",
        )
        parser.add_argument(
            "--node", action="append", metavar="KEY", help="with --restart: this node; may be repeated"
        )
        self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        run = find_run(options["id"])
        if options["node"] and not options["restart"]:
            raise CommandError("--node is for --restart")
        if options["erase"]:
            self._erase(run, options)
            return None
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
        if name == "restart":
            restart_run(run.id, keys=nodes, ports=ports, by=cli_actor())
        else:
            act = {
                "cancel": cancel_run,
                "pause": pause_run,
                "resume": resume_run,
            }[name]
            act(run.id, ports=ports, by=cli_actor())
        run = find_run(run.id)
        said = {
            "cancel": "is being cancelled",
            "pause": "starts no further nodes",
            "resume": "goes on",
            "restart": f"runs again, round {run.round}",
        }[name]
        self.report(run_document(run), f"{run.id} {said}")

    def _erase(self, run: Run, options: dict[str, Any]) -> None:
        self.confirm(f"Erase the inputs, output and files of run {run.id} and of all its jobs?", options)
        ports = jobs.ports.production_ports()
        run = erase_run_data(run.id, ports=ports, by=cli_actor())
        document = {"run_id": run.id, "requested_at": run.erase_requested_at, "erased_at": run.erased_at}
        rest = "" if run.erased_at else "; that of its last jobs goes within minutes"
        self.report(document, f"{run.id}: its data is erased{rest}")

    def _show(self, run: Run, *, with_children: bool) -> None:
        ports = jobs.ports.production_ports()
        nodes = newest_nodes(run, with_children=with_children)
        why = explanation_json(run, ports)
        if self.as_json:
            of_nodes = {"nodes": node_documents(nodes)}
            self.print_json({**run_document(run), **of_nodes, **{key: why[key] for key in _EXPLAINED}})
            return
        now = ports.clock.now()
        self.show(*run_lines(run, now), *why_lines(run, why), "", node_table(run, nodes, now))

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
