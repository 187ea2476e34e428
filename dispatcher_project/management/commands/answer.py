from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.runs import find_run, run_document
from dispatcher_project.cli.screen import age, plain, table
from dispatcher_project.management.commands.submit import read_payload
from gpus.registry.audit import cli_actor
from workflows.domain.plan import NodeKind
from workflows.models import Wait
from workflows.operations.answers import answer_wait

if TYPE_CHECKING:
    from rich.table import Table


class Command(TerminalCommand):
    help = (
        "Answer a human node of a run: one of its choices, or JSON that matches its form. Without arguments, "
        "list what waits for a person."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", nargs="?", metavar="ID", help="id of the run")
        parser.add_argument("key", nargs="?", metavar="KEY", help="node, such as best or best[3]")
        parser.add_argument(
            "value",
            nargs="?",
            metavar="VALUE",
            help="JSON, else a text; - reads standard input, @FILE a file",
        )
        parser.add_argument(
            "--round",
            type=positive,
            metavar="N",
            help="only if the node is in this round, as the list shows it: not if it was restarted since",
        )
        parser.add_argument("--limit", type=positive, default=20, help="rows of the list (default 20)")

    def act(self, options: dict[str, Any]) -> int | None:
        if options["id"] is None:
            self._list(options["limit"])
            return None
        if options["value"] is None:
            raise CommandError("usage: answer ID KEY VALUE, or answer alone for what waits")
        run, key = find_run(options["id"]), options["key"]
        ports = jobs.ports.production_ports()
        answer_wait(
            run,
            key,
            _answer(options["value"]),
            by=cli_actor(),
            round_number=options["round"],
            ports=ports,
        )
        self.report(run_document(find_run(run.id)), f"{run.id} {key}: answered")
        return None

    def _list(self, limit: int) -> None:
        waits = list(
            Wait.objects.select_related("node__run__version__workflow")
            .filter(kind=NodeKind.HUMAN.value, answered_at=None)
            .order_by("node_id")[:limit]
        )
        if self.as_json:
            self.print_json({"results": [_document(wait) for wait in waits]})
        elif waits:
            self.show(_table(waits))
        else:
            self.print("nothing waits for an answer")


def _answer(text: str) -> Any:
    """Return JSON, or the text itself. Raises CommandError."""
    if text[:1] in ("@", "-") and (text == "-" or text.startswith("@")):
        return read_payload(text)
    try:
        json.loads(text)
    except ValueError:
        return text
    return read_payload(text)


def _document(wait: Wait) -> dict[str, Any]:
    run = wait.node.run
    return {
        "run_id": run.id,
        "key": wait.node.key,
        "round": wait.node.round,
        "workflow": run.version.workflow.name,
        "title": wait.options.get("title", ""),
        "choose_from": wait.options.get("choose_from"),
        "form": wait.options.get("form"),
        "answer_by": wait.options.get("answer_by"),
        "since": wait.node.started_at,
        "expires_at": wait.due_at,
    }


def _table(waits: list[Wait]) -> Table:
    now = jobs.ports.production_ports().clock.now()
    cells = [
        (
            wait.node.run_id,
            wait.node.key,
            str(wait.node.round),
            wait.node.run.version.workflow.name,
            f"{age((now - wait.node.started_at).total_seconds())} ago" if wait.node.started_at else "–",
            age((wait.due_at - now).total_seconds()) if wait.due_at else "–",
            plain(", ".join(wait.options.get("answer_by", ())) or "anyone", 40),
            plain(wait.options.get("title", "")),
            plain(json.dumps(wait.options.get("choose_from", "a form"), ensure_ascii=False), 80),
        )
        for wait in waits
    ]
    heads = ("run", "node", "round", "workflow", "waiting since", "expires in", "for", "question", "choices")
    return table(heads, cells, gives_way=("question", "choices"))
