from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser
from django.db.models import Count

import jobs.ports
from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.owners import named_row, owner_of_new
from dispatcher_project.cli.paging import newest_page
from dispatcher_project.cli.screen import plain, problem_text, table
from foundation.http_api.json_body import read_body, read_json
from foundation.http_api.problems import Problem
from foundation.moments import read_moment
from foundation.program import command_line
from foundation.texts import counted
from gpus.registry.audit import cli_actor
from jobs.domain.errors import Refused
from jobs.ports import Ports
from workflows.api.schedules import firing_json, schedule_json, summary_json
from workflows.models import Workflow
from workflows.schedules.backlog import backlog_of
from workflows.schedules.body import ScheduleBody
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.execution.fire import is_paused
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.backfill import backfill, cancel_backfills
from workflows.schedules.operations.fire_times import fire_times_if_resumed
from workflows.schedules.operations.pause import pause_schedule, resume_schedule
from workflows.schedules.operations.read import read_schedule
from workflows.schedules.operations.store import as_if_stored, delete_schedule, put_schedule
from workflows.schedules.operations.trigger import trigger

if TYPE_CHECKING:
    from rich.table import Table

_ACTIONS = (
    "list",
    "put",
    "show",
    "preview",
    "firings",
    "trigger",
    "backfill",
    "cancel-backfills",
    "pause",
    "resume",
    "delete",
)
_SHOWN = 10


class Command(TerminalCommand):
    help = (
        "Schedules of a tenant: list them, store one from a JSON file, show it with its last firings, list "
        "its firings, preview its fire times or those of a file, start it now, start past due times, cancel "
        "those that wait, pause, resume or delete it."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action", nargs="?", default="list", choices=_ACTIONS, metavar="ACTION", help=", ".join(_ACTIONS)
        )
        parser.add_argument("name", nargs="?", help="the schedule")
        parser.add_argument("file", nargs="?", help="put, preview: its JSON; - is standard input")
        parser.add_argument(
            "--tenant",
            help="whose schedule (default: the only tenant that has one of that name, else operator)",
        )
        parser.add_argument("--count", type=positive, default=_SHOWN, help="preview: fire times (default 10)")
        parser.add_argument(
            "--outcome", choices=[outcome.value for outcome in Outcome], help="firings: filter"
        )
        parser.add_argument("--before", metavar="ID", help="firings: only older than this one: the next page")
        parser.add_argument("--limit", type=positive, default=20, help="firings: rows (default 20)")
        parser.add_argument(
            "--from",
            dest="first",
            metavar="TIME",
            help="backfill: first due time, such as 2026-01-31T12:00 (UTC), or 2h, 7d for that long ago",
        )
        parser.add_argument(
            "--to",
            dest="last",
            metavar="TIME",
            help="backfill: last due time, the same (default: now)",
        )
        parser.add_argument("--dry-run", action="store_true", help="backfill: only count them")
        parser.add_argument("--parallel", action="store_true", help="backfill: do not wait for each other")
        parser.add_argument(
            "--until",
            metavar="TIME",
            help="pause: go on then, such as 2026-02-01T08:00 (UTC), or 2h, 7d for that much later",
        )
        parser.add_argument("--reason", default="", help="pause: is shown")

    def act(self, options: dict[str, Any]) -> int | None:
        ports = jobs.ports.production_ports()
        action: str = options["action"]
        if (options["name"] is None) != (action == "list"):
            raise CommandError(f"{action} takes {'no' if action == 'list' else 'a'} name")
        if action == "put" and options["file"] is None:
            raise CommandError("put takes a name and a JSON file")
        if action not in ("put", "preview") and options["file"] is not None:
            raise CommandError(f"{action} takes no file")
        try:
            getattr(self, f"_{action.replace('-', '_')}")(options, ports)
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
        firings = Firing.objects.filter(outcome=Outcome.WAITING.value, schedule__in=rows).order_by()
        names = firings.values_list("schedule__tenant__name", "schedule__name")
        waiting = {(tenant, name): count for tenant, name, count in names.annotate(Count("pk"))}
        if self.as_json:
            self.print_json(found)
        elif found:
            cells = [
                (
                    plain(one["tenant"], 20),
                    plain(one["name"], 30),
                    "error" if one["error"] else "paused" if one["paused"] else "active",
                    str(waiting.get((one["tenant"], one["name"]), "")),
                    plain(one["words"], 50),
                    _time(one["next_due_at"]),
                )
                for one in found
            ]
            self.show(table(("tenant", "schedule", "state", "waiting", "due", "next (UTC)"), cells))
        else:
            self.print(f"no schedule: `{command_line('schedule put NAME FILE')}` stores one")

    def _put(self, options: dict[str, Any], ports: Ports) -> None:
        stored = put_schedule(_read(options, ports), cli_actor())
        self._say(stored.schedule, ports, "created" if stored.is_new else "stored")

    def _show(self, options: dict[str, Any], ports: Ports) -> None:
        schedule = self._named(options)
        firings = list(Firing.objects.filter(schedule=schedule)[: _SHOWN + 1])
        shown = schedule_json(schedule, ports.clock.now(), with_payload=True)
        if self.as_json:
            self.print_json({**shown, "firings": [firing_json(one) for one in firings[:_SHOWN]]})
            return
        self.print(f"{schedule.name}: {shown['words']}")
        if shown["paused"]:
            until = f" until {_time(shown['paused_until'])} UTC" if shown["paused_until"] else ""
            reason = f": {plain(shown['pause_reason'], 100)}" if shown["pause_reason"] else ""
            self.print(f"paused{until}{reason}")
        if shown["error"]:
            self.print(f"error: {plain(shown['error']['message'], 200)}")
        self.print(
            "next: " + (", ".join(_local(one["local"]) for one in shown["next"][:3]) or _no_next(shown))
        )
        for message in backlog_of(schedule, ports.clock.now()).messages:
            self.print(message)
        if firings:
            self.show(_firing_table(firings[:_SHOWN]))
        if len(firings) > _SHOWN:
            self.print(f"… older ones: `{command_line(f'schedule firings {schedule.name}')}`")

    def _preview(self, options: dict[str, Any], ports: Ports) -> None:
        now = ports.clock.now()
        schedule = self._named(options) if options["file"] is None else as_if_stored(_read(options, ports))
        found = fire_times_if_resumed(schedule, options["count"], now)
        if self.as_json:
            rows = [
                {"due_at": one.due_at, "fires_at": one.fires_at, "local": one.local.isoformat()}
                for one in found
            ]
            self.print_json(rows)
            return
        if is_paused(schedule, now) and schedule.paused_until is None:
            self.print("paused: nothing is due until it is resumed; if it were resumed now:")
        for one in found:
            due = _local(one.local.isoformat())
            self.print(
                f"{_time(one.fires_at)} UTC   "
                + (due if one.fires_at == one.due_at else f"due {due}, later by its jitter")
            )
        if not found:
            self.print(
                "never due" if not schedule.error_code else f"error: {plain(schedule.error_message, 200)}"
            )

    def _firings(self, options: dict[str, Any], ports: Ports) -> None:
        rows = Firing.objects.filter(schedule=self._named(options))
        if options["outcome"] is not None:
            rows = rows.filter(outcome=options["outcome"])
        shown, last = newest_page(rows, options)
        if self.as_json:
            self.print_json({"results": [firing_json(one) for one in shown], "before": last})
        elif shown:
            self.show(_firing_table(shown))
            if last is not None:
                self.print(f"… older ones: --before {last}")
        else:
            self.print("no firing matches")

    def _trigger(self, options: dict[str, Any], ports: Ports) -> None:
        by = cli_actor()
        firing = trigger(self._named(options), by=by, ports=ports, operator=by).firing
        if self.as_json:
            self.print_json(firing_json(firing))
        else:
            self.print(f"started {firing.job_id or firing.run_id}")

    def _backfill(self, options: dict[str, Any], ports: Ports) -> None:
        if options["first"] is None:
            raise CommandError("backfill takes --from TIME, such as --from 7d")
        now = ports.clock.now()
        first = _read_time(options["first"], "--from", now)
        last = now if options["last"] is None else _read_time(options["last"], "--to", now)
        done = backfill(
            self._named(options),
            first,
            last,
            by=cli_actor(),
            operator=cli_actor(),
            ports=ports,
            parallel=options["parallel"],
            dry_run=options["dry_run"],
        )
        if self.as_json:
            self.print_json({"count": len(done.dues), "first": done.dues[0], "last": done.dues[-1]})
        else:
            verb = "would start" if options["dry_run"] else "starts"
            times = f"{_time(done.dues[0])} to {_time(done.dues[-1])}"
            pace = "" if options["parallel"] else ", one after the other (at once with --parallel)"
            self.print(f"{verb} {counted(len(done.dues), 'due time')}, {times} UTC{pace}")

    def _cancel_backfills(self, options: dict[str, Any], ports: Ports) -> None:
        count = cancel_backfills(self._named(options), ports=ports, operator=cli_actor())
        if self.as_json:
            self.print_json({"count": count})
        else:
            self.print(f"cancelled {counted(count, 'waiting firing')} of backfills; what was started goes on")

    def _pause(self, options: dict[str, Any], ports: Ports) -> None:
        now = ports.clock.now()
        until = _read_time(options["until"], "--until", now, ahead=True) if options["until"] else None
        schedule = self._named(options)
        self._say(
            pause_schedule(
                schedule,
                ports=ports,
                until=until,
                reason=options["reason"][:200],
                operator=cli_actor(),
            ),
            ports,
            "paused",
        )

    def _resume(self, options: dict[str, Any], ports: Ports) -> None:
        resumed = resume_schedule(self._named(options), ports=ports, operator=cli_actor())
        self._say(resumed, ports, "resumed")

    def _delete(self, options: dict[str, Any], ports: Ports) -> None:
        schedule = self._named(options)
        delete_schedule(schedule, cli_actor())
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
            due = f"{_time(shown['next_due_at'])} UTC" if shown["next_due_at"] else _no_next(shown)
            self.print(f"{verb} {schedule.name} of {schedule.tenant.name}: {shown['words']}; next {due}")


def _read(options: dict[str, Any], ports: Ports) -> Schedule:
    """Return the row of the schedule in the file, checked and not saved. Raises CommandError, Problem."""
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
        return read_schedule(tenant.pk, name, body, ports=ports)
    except Problem as problem:
        raise CommandError(
            f"{problem_text(problem)} (tenant {tenant.name}; --tenant names another)"
        ) from None


def _firing_table(firings: Sequence[Firing]) -> Table:
    rows = [
        (
            _time(one.due_at) + (f" × {one.count}" if one.count > 1 else ""),
            one.outcome,
            one.reason or one.end_state,
            one.job_id or one.run_id or "",
            one.by,
        )
        for one in firings
    ]
    return table(("due (UTC)", "outcome", "why or end", "job or run", "by"), rows, gives_way=("by",))


def _no_next(shown: dict[str, Any]) -> str:
    return "none, until it is resumed" if shown["paused"] else "never"


def _time(at: datetime | None) -> str:
    return "–" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _local(text: str) -> str:
    """Return a local time with its offset for people, from ISO 8601."""
    return text.replace("T", " ")


def _read_time(text: str, option: str, now: datetime, *, ahead: bool = False) -> datetime:
    try:
        return read_moment(text, now, ahead=ahead)
    except ValueError as error:
        raise CommandError(f"{option}: {error}") from None
