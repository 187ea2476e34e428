from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.owners import named_row, owner_of_new
from dispatcher_project.cli.screen import plain, table
from foundation.http_api.json_body import NO_TIME, read_body, read_json, read_time
from foundation.http_api.problems import Problem
from foundation.program import command_line
from jobs.domain.errors import Refused
from jobs.ports import Ports
from workflows.api.schedules import firing_json, schedule_json, summary_json
from workflows.models import Workflow
from workflows.schedules import operations
from workflows.schedules.body import ScheduleBody
from workflows.schedules.models import Firing, Schedule

_ACTIONS = ("list", "put", "show", "preview", "trigger", "backfill", "pause", "resume", "delete")
_SHOWN = 10


class Command(TerminalCommand):
    help = (
        "Schedules of a tenant: list them, store one from a JSON file, show it with its last firings, "
        "preview its fire times, start it now, start past due times, pause, resume or delete it."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action", nargs="?", default="list", choices=_ACTIONS, metavar="ACTION", help=", ".join(_ACTIONS)
        )
        parser.add_argument("name", nargs="?", help="the schedule")
        parser.add_argument("file", nargs="?", help="put: its JSON; - is standard input")
        parser.add_argument(
            "--tenant",
            help="whose schedule (default: the only tenant that has one of that name, else operator)",
        )
        parser.add_argument("--count", type=positive, default=_SHOWN, help="preview: fire times (default 10)")
        parser.add_argument("--from", dest="first", metavar="TIME", help="backfill: first due time")
        parser.add_argument("--to", dest="last", metavar="TIME", help="backfill: last due time")
        parser.add_argument("--dry-run", action="store_true", help="backfill: only count them")
        parser.add_argument("--parallel", action="store_true", help="backfill: all at once")
        parser.add_argument("--until", metavar="TIME", help="pause: go on then")
        parser.add_argument("--reason", default="", help="pause: is shown")

    def act(self, options: dict[str, Any]) -> int | None:
        ports = jobs.ports.production_ports()
        action: str = options["action"]
        if (options["name"] is None) != (action == "list"):
            raise CommandError(f"{action} takes {'no' if action == 'list' else 'a'} name")
        if (options["file"] is None) == (action == "put"):
            raise CommandError(
                "put takes a name and a JSON file" if action == "put" else f"{action} takes no file"
            )
        try:
            getattr(self, f"_{action}")(options, ports)
        except Problem as problem:
            raise CommandError(problem_text(problem)) from None
        except Refused as refused:
            raise CommandError(str(refused)) from None
        return None

    def _list(self, options: dict[str, Any], ports: Ports) -> None:
        now = ports.clock.now()
        rows = Schedule.objects.select_related("tenant").order_by("tenant__name", "name")
        if options["tenant"] is not None:
            rows = rows.filter(tenant=tenant_named(options["tenant"]))
        found = [{"tenant": row.tenant.name, **summary_json(row, now)} for row in rows]
        if self.as_json:
            self.print_json(found)
        elif found:
            cells = [
                (
                    plain(one["tenant"], 20),
                    plain(one["name"], 30),
                    "error" if one["error"] else "paused" if one["paused"] else "active",
                    plain(one["words"], 50),
                    _time(one["next_due_at"]),
                )
                for one in found
            ]
            self.show(table(("tenant", "schedule", "state", "due", "next (UTC)"), cells))
        else:
            self.print(f"no schedule: `{command_line('schedule put NAME FILE')}` stores one")

    def _put(self, options: dict[str, Any], ports: Ports) -> None:
        name, path = options["name"], options["file"]
        try:
            raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from None
        body = read_body(ScheduleBody, read_json(raw))
        if body.name not in (None, name):
            raise CommandError("the name in the file is another one")
        starts = [] if body.workflow is None else [(Workflow, body.workflow.name)]
        tenant = owner_of_new(options["tenant"], (Schedule, name), *starts)
        try:
            row = operations.read_schedule(tenant.pk, name, body, ports=ports)
        except Problem as problem:
            raise CommandError(
                f"{problem_text(problem)} (tenant {tenant.name}; --tenant names another)"
            ) from None
        stored = operations.put_schedule(row)
        self._say(stored.schedule, ports, "created" if stored.is_new else "stored")

    def _show(self, options: dict[str, Any], ports: Ports) -> None:
        schedule = self._named(options)
        firings = list(Firing.objects.filter(schedule=schedule)[:_SHOWN])
        shown = schedule_json(schedule, ports.clock.now(), with_payload=True)
        if self.as_json:
            self.print_json({**shown, "firings": [firing_json(one) for one in firings]})
            return
        self.print(f"{schedule.name}: {shown['words']}")
        if shown["paused"]:
            until = f" until {_time(shown['paused_until'])}" if shown["paused_until"] else ""
            self.print(f"paused{until} {plain(shown['pause_reason'] or '', 100)}".rstrip())
        if shown["error"]:
            self.print(f"error: {plain(shown['error']['message'], 200)}")
        self.print("next: " + (", ".join(one["local"] for one in shown["next"][:3]) or "never"))
        cells = [
            (
                _time(one.due_at) + (f" × {one.count}" if one.count > 1 else ""),
                one.outcome,
                one.reason or one.end_state,
                one.job_id or one.run_id or "",
            )
            for one in firings
        ]
        if cells:
            self.show(table(("due (UTC)", "outcome", "why or end", "job or run"), cells))

    def _preview(self, options: dict[str, Any], ports: Ports) -> None:
        found = operations.fire_times(self._named(options), options["count"], ports.clock.now())
        if self.as_json:
            rows = [
                {"due_at": one.due_at, "fires_at": one.fires_at, "local": one.local.isoformat()}
                for one in found
            ]
            self.print_json(rows)
            return
        for one in found:
            self.print(f"{_time(one.fires_at)} UTC   {one.local.isoformat()}")

    def _trigger(self, options: dict[str, Any], ports: Ports) -> None:
        firing = operations.trigger(self._named(options), by="cli", ports=ports)
        if self.as_json:
            self.print_json(firing_json(firing))
        else:
            self.print(f"started {firing.job_id or firing.run_id}")

    def _backfill(self, options: dict[str, Any], ports: Ports) -> None:
        first, last = _read_time(options["first"], "--from"), _read_time(options["last"], "--to")
        done = operations.backfill(
            self._named(options),
            first,
            last,
            by="cli",
            ports=ports,
            parallel=options["parallel"],
            dry_run=options["dry_run"],
        )
        if self.as_json:
            self.print_json({"count": len(done.dues), "first": done.dues[0], "last": done.dues[-1]})
        else:
            verb = "would start" if options["dry_run"] else "starts"
            times = f"{_time(done.dues[0])} to {_time(done.dues[-1])}"
            self.print(f"{verb} {len(done.dues)} due times, {times} UTC")

    def _pause(self, options: dict[str, Any], ports: Ports) -> None:
        until = _read_time(options["until"], "--until") if options["until"] else None
        schedule = self._named(options)
        self._say(
            operations.pause_schedule(schedule, ports=ports, until=until, reason=options["reason"][:200]),
            ports,
            "paused",
        )

    def _resume(self, options: dict[str, Any], ports: Ports) -> None:
        self._say(operations.resume_schedule(self._named(options), ports=ports), ports, "resumed")

    def _delete(self, options: dict[str, Any], ports: Ports) -> None:
        schedule = self._named(options)
        operations.delete_schedule(schedule)
        if self.as_json:
            self.print_json({"deleted": schedule.name})
        else:
            self.print(f"deleted {schedule.name}")

    def _named(self, options: dict[str, Any]) -> Schedule:
        return named_row(Schedule, options["name"], options["tenant"])

    def _say(self, schedule: Schedule, ports: Ports, verb: str) -> None:
        shown = schedule_json(schedule, ports.clock.now(), with_payload=True)
        if self.as_json:
            self.print_json(shown)
        else:
            self.print(f"{verb} {schedule.name}: {shown['words']}; next {_time(schedule.next_due_at)}")


def problem_text(problem: Problem) -> str:
    """Return the errors of a schedule in one line, each with its place."""
    places = "; ".join(f"{error.pointer or '/'}: {error.detail}" for error in problem.errors)
    return places or problem.detail


def _time(at: datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _read_time(text: str | None, option: str) -> datetime:
    found = read_time(text or "")
    if found is None:
        raise CommandError(f"{option}: {NO_TIME[0].lower()}{NO_TIME[1:]}")
    return found
