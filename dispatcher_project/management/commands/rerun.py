from __future__ import annotations

import argparse
import json
from typing import Any

from django.core.management.base import CommandError, CommandParser

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import problem_text
from dispatcher_project.management.commands.submit import read_payload
from foundation.http_api.json_body import read_json
from foundation.http_api.problems import Problem
from gpus.registry.audit import cli_actor
from jobs import ports
from jobs.operations.queue_position import FIRST_PRIORITY, LAST_PRIORITY
from jobs.operations.rerun import find_with_payload, rerun_job


class Command(TerminalCommand):
    help = (
        "Run a job again, whatever became of it: a new job of the same tenant with the same values, or with "
        "changes. The limits of a submit apply."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", metavar="ID", help="of the job")
        parser.add_argument(
            "--payload", help="JSON in place of the payload; - reads standard input, @FILE a file"
        )
        parser.add_argument(
            *("--set", "-s"),
            dest="changes",
            action="append",
            default=[],
            type=_change,
            metavar="KEY=VALUE",
            help="change one value of the payload, such as steps=30 or size.width=512; VALUE is JSON, or "
            "text. May be repeated",
        )
        parser.add_argument(
            "--priority", type=int, metavar=f"{FIRST_PRIORITY}-{LAST_PRIORITY}", help="1 first"
        )
        parser.add_argument(
            "--idempotency-key",
            help="the same key and changes mean the same new job, however often it is sent",
        )

    def act(self, options: dict[str, Any]) -> int | None:
        job = find_with_payload(options["id"].upper())
        if job is None:
            raise CommandError(
                f"there is no job {options['id']}: it was never submitted here, or retention removed it "
                "with its payload"
            )
        changes: dict[str, Any] = {}
        if options["payload"] is not None:
            changes["payload"] = read_payload(options["payload"])
        if options["changes"]:
            changes["payload"] = with_changes(changes.get("payload", job.payload), options["changes"])
        if options["priority"] is not None:
            changes["priority"] = options["priority"]
        try:
            submitted = rerun_job(
                job,
                changes,
                ports=ports.production_ports(),
                idempotency_key=options["idempotency_key"],
                by=cli_actor(),
            )
        except Problem as problem:
            raise CommandError(problem_text(problem)) from None
        new, outcome = submitted.job, submitted.outcome.value
        again = " (run again before under this key)" if submitted.replayed else ""
        document = {
            "job_id": new.id,
            "rerun_of": job.id,
            "outcome": outcome,
            "position": submitted.position,
            "replayed": submitted.replayed,
        }
        self.report(document, f"{new.id} {outcome}, runs {job.id} again{again}")
        return None


def _change(text: str) -> tuple[list[str], Any]:
    """``a.b=1`` → ``(["a", "b"], 1)``."""
    key, found, value = text.partition("=")
    path = key.split(".")
    if not found or not all(path):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} is not KEY=VALUE")
    try:
        return path, read_json(value.encode())
    except (Problem, UnicodeError):
        return path, value


def with_changes(payload: Any, changes: list[tuple[list[str], Any]]) -> Any:
    """Return a copy of the payload with these values; missing objects on the way are made. Raises
    CommandError if something on the way is no object."""
    changed = json.loads(json.dumps(payload))
    for path, value in changes:
        place = changed
        for name in path[:-1]:
            place = place.setdefault(name, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise CommandError(f"{'.'.join(path)}: the payload has no object there")
        place[path[-1]] = value
    return changed
