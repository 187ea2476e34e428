"""The commands `drain`, `on` and `off`, with the choice of servers and the wait for their jobs."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand, positive_seconds
from dispatcher_project.cli.screen import age, table
from foundation.texts import counted
from gpus.models import Server
from gpus.protocol import DesiredState
from gpus.registry.audit import cli_actor
from gpus.registry.controls import switch_machine, switch_server
from jobs.domain.states import AttemptState
from jobs.models import Attempt

POLL_SECONDS = 1.0
STILL_BUSY = 3
"""Exit status if jobs still run after --timeout."""


class SwitchCommand(TerminalCommand):
    """desired: the state to set. waits: whether there is an option --wait."""

    desired: DesiredState
    waits = True

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("servers", nargs="*", metavar="SERVER", help='name or pattern, such as "flux-*"')
        parser.add_argument("--machine", help="every server of this machine, in one transaction")
        parser.add_argument("--all", action="store_true", help="every server")
        if self.desired is DesiredState.OFF:
            self.add_yes(parser)
        if self.waits:
            parser.add_argument(
                "--wait", action="store_true", help="wait until no job runs there, and show those that do"
            )
            parser.add_argument(
                "--timeout",
                type=positive_seconds,
                metavar="SECONDS",
                help="limit of --wait; then exit status 3",
            )

    def act(self, options: dict[str, Any]) -> int | None:
        names = named_servers(options["servers"], machine=options["machine"], everything=options["all"])
        if self.desired is DesiredState.OFF and options["all"]:
            self.confirm(f"switch off {counted(len(names), 'server')} and stop their jobs?", options)
        if options["machine"] is None:
            mirrored = all([self._switch(name) for name in names])
        else:
            names, mirrored = self._switch_machine(options["machine"])
        busy: list[dict[str, Any]] = running_on(names)
        if self.waits and options["wait"]:
            busy = self._wait(names, options["timeout"])
        if self.as_json:
            self.print_json(
                {"servers": names, "desired": self.desired.value, "mirrored": mirrored, "running": busy}
            )
        elif busy and self.waits and not options["wait"]:
            self.print(f"{counted(len(busy), 'job')} still running there; --wait waits for them")
        return STILL_BUSY if busy and self.waits and options["wait"] else None

    def _switch(self, name: str) -> bool:
        """Switch one server. Return whether the change is in Redis already."""
        ports = jobs.ports.production_ports()
        switched = switch_server(name, self.desired, by=cli_actor(), leases=ports.leases)
        if switched is None:
            raise CommandError(f"server {name} is gone")
        ports.send_wakes(switched.wakes)
        self._print_switched(name, is_live=switched.mirrored)
        return switched.mirrored

    def _switch_machine(self, machine: str) -> tuple[list[str], bool]:
        """Switch a machine. Return its servers, and whether the change is in Redis already."""
        ports = jobs.ports.production_ports()
        switched = switch_machine(machine, self.desired, by=cli_actor(), leases=ports.leases)
        ports.send_wakes(switched.wakes)
        for name in switched.servers:
            self._print_switched(name, is_live=switched.mirrored)
        return list(switched.servers), switched.mirrored

    def _print_switched(self, name: str, *, is_live: bool) -> None:
        if not self.as_json:
            later = "" if is_live else ": Redis does not answer, so it takes effect once Redis is back"
            self.print(f"{name} set to {self.desired.value}{later}")

    def _wait(self, names: Sequence[str], timeout: float | None) -> list[dict[str, Any]]:
        deadline = None if timeout is None else time.monotonic() + timeout
        shown: list[str] = []
        while busy := running_on(names):
            if sorted(run["job_id"] for run in busy) != shown:
                shown = sorted(run["job_id"] for run in busy)
                if not self.as_json:
                    self.show(table(_HEAD, [_row(run) for run in busy]), "")
            if deadline is not None and time.monotonic() >= deadline:
                if not self.as_json:
                    self.print(f"{counted(len(busy), 'job')} still running there after {timeout:g} s")
                return busy
            time.sleep(POLL_SECONDS)
        if not self.as_json:
            self.print("idle: no job is running there")
        return []


_HEAD = ("slot", "job", "model", "state", "since")


_STATES = {AttemptState.SENT: "running", AttemptState.WAITING: "running, polled"}
"""What a live attempt does, for people: `waiting` is the worker, not the job."""


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    state = _STATES.get(run["state"], run["state"])
    return run["slot"], run["job_id"], run["model"], state, age(run["seconds"])


def named_servers(names: Sequence[str], *, machine: str | None, everything: bool) -> list[str]:
    """The servers that the options name. Raises CommandError for unknown ones, or none.

    names: names or patterns such as ``flux-*``."""
    known = dict(Server.objects.values_list("name", "machine"))
    if [bool(names), machine is not None, everything].count(True) != 1:
        raise CommandError("give servers by name, --machine or --all: exactly one of these")
    if everything:
        if not known:
            raise CommandError("no server is registered")
        return list(known)
    if machine is not None:
        if there := [name for name, of in known.items() if of == machine]:
            return there
        others = ", ".join(sorted({of for of in known.values() if of})) or "none"
        raise CommandError(f"no server belongs to a machine {machine}; the machines are {others}")
    found = {name: fnmatch.filter(known, name) if "*" in name else [name] for name in names}
    if unknown := sorted(name for name, matches in found.items() if not matches or set(matches) - set(known)):
        raise CommandError(f"no server is named {', '.join(unknown)}; there are {', '.join(known) or 'none'}")
    return list(dict.fromkeys(name for matches in found.values() for name in matches))


def running_on(names: Sequence[str]) -> list[dict[str, Any]]:
    """The live attempts on these servers, the oldest first, from the database."""
    now = jobs.ports.production_ports().clock.now()
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
