"""`drain`, `on` and `off`: which servers are meant, what they are to be, and what still runs on them."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from dispatcher_project.terminal.command import TerminalCommand, positive_seconds
from dispatcher_project.terminal.paint import age, table
from gpus.models import Server
from gpus.protocol import DesiredState
from gpus.services.audit import cli_actor
from gpus.services.controls import switch_server
from jobs.models import Attempt
from jobs.services import ports as wiring

LOOK_SECONDS = 1.0
STILL_BUSY = 3
"""Exit status when --timeout passed and something still runs."""


class SwitchCommand(TerminalCommand):
    """desired: what the servers are to be. waits: whether --wait makes sense."""

    desired: DesiredState
    waits = True

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("servers", nargs="*", metavar="SERVER")
        parser.add_argument("--all", action="store_true", help="every server")
        if self.desired is DesiredState.OFF:
            self.add_yes(parser)
        if self.waits:
            parser.add_argument(
                "--wait", action="store_true", help="show what still runs, until nothing does"
            )
            parser.add_argument(
                "--timeout", type=positive_seconds, metavar="SECONDS", help="of --wait; then exit status 3"
            )

    def act(self, options: dict[str, Any]) -> int | None:
        names = named_servers(options["servers"], everything=options["all"])
        if self.desired is DesiredState.OFF and options["all"]:
            count = f"{len(names)} server{'' if len(names) == 1 else 's'}"
            self.ask(f"switch off {count}, stop what runs there?", options)
        ports = wiring.production_ports()
        told = []
        for name in names:
            switched = switch_server(name, self.desired, by=cli_actor(), leases=ports.leases)
            if switched is None:
                raise CommandError(f"server {name} is gone")
            ports.send_wakes(switched.wakes)
            told.append(switched.mirrored)
            if not self.as_json:
                later = "" if switched.mirrored else "  (Redis is away: takes effect once it is back)"
                self.say(f"{name} is to be {self.desired.value}{later}")
        busy: list[dict[str, Any]] = running_on(names)
        if self.waits and options["wait"]:
            busy = self._wait(names, options["timeout"])
        if self.as_json:
            self.tell(
                {"servers": names, "desired": self.desired.value, "mirrored": all(told), "running": busy}
            )
        elif busy and self.waits and not options["wait"]:
            self.say(f"{len(busy)} still run there; --wait shows them")
        return STILL_BUSY if busy and self.waits and options["wait"] else None

    def _wait(self, names: Sequence[str], timeout: float | None) -> list[dict[str, Any]]:
        until = None if timeout is None else time.monotonic() + timeout
        shown: list[str] = []
        while busy := running_on(names):
            if sorted(run["job_id"] for run in busy) != shown:
                shown = sorted(run["job_id"] for run in busy)
                if not self.as_json:
                    self.say(*table(_HEAD, [_row(run) for run in busy], self.paint), "")
            if until is not None and time.monotonic() >= until:
                return busy
            time.sleep(LOOK_SECONDS)
        if not self.as_json:
            self.say("nothing runs there any more")
        return []


_HEAD = ("slot", "job", "model", "state", "since")


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    return run["slot"], run["job_id"], run["model"], run["state"], age(run["seconds"])


def named_servers(names: Sequence[str], *, everything: bool) -> list[str]:
    """names: also patterns, ``box-*`` for all GPUs of a box. Raises CommandError for none, and for what is no
    server."""
    known = list(Server.objects.values_list("name", flat=True))
    if everything:
        if names:
            raise CommandError("name servers, or say --all; not both")
        if not known:
            raise CommandError("no server is registered")
        return known
    if not names:
        raise CommandError("name at least one server, or say --all")
    found = {name: fnmatch.filter(known, name) if "*" in name else [name] for name in names}
    if unknown := sorted(name for name, meant in found.items() if not meant or set(meant) - set(known)):
        raise CommandError(f"no server is named {', '.join(unknown)}; there are {', '.join(known) or 'none'}")
    return list(dict.fromkeys(name for meant in found.values() for name in meant))


def running_on(names: Sequence[str]) -> list[dict[str, Any]]:
    """Live attempts there, as the database knows them, the oldest first."""
    now = wiring.production_ports().clock.now()
    attempts = Attempt.objects.filter(server__in=names, state__in=Attempt.LIVE).order_by("started_at")
    return [
        {
            "slot": f"{attempt.server}/{attempt.slot}",
            "job_id": attempt.job_id,
            "model": attempt.model,
            "state": attempt.state,
            "seconds": round((now - attempt.started_at).total_seconds(), 3),
        }
        for attempt in attempts
    ]
