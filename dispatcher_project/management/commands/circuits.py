from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import age, line, table
from gpus.health.circuits import CircuitEntry, all_circuits, reset_circuit
from gpus.protocol import CircuitKind, CircuitState
from gpus.registry.audit import cli_actor

if TYPE_CHECKING:
    from rich.table import Table


class Command(TerminalCommand):
    help = (
        "List the circuit breakers of servers and models that failed lately. `circuits reset server NAME` "
        "and `circuits reset model NAME` close one: a repaired server or model gets jobs at once."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action", nargs="?", default="list", choices=["list", "reset"], help="default: list"
        )
        parser.add_argument("kind", nargs="?", choices=[kind.value for kind in CircuitKind], help="for reset")
        parser.add_argument("name", nargs="?", default="", help="of the server or model, for reset")

    def act(self, options: dict[str, Any]) -> int | None:
        kind, name = options["kind"], options["name"]
        if options["action"] == "reset":
            if not kind or not name:
                raise CommandError(
                    "name what to reset: `circuits reset server NAME` or `circuits reset model NAME`"
                )
            self._reset(CircuitKind(kind), name)
            return None
        if kind:
            raise CommandError("a kind and a name are for reset; `circuits` lists all")
        found = all_circuits(jobs.ports.production_ports().leases)
        if self.as_json:
            self.print_json({"results": [one.as_json() for one in found.entries], "away": found.away})
            return None
        if found.entries:
            self.show(circuit_table(found.entries))
        else:
            self.print("no circuit breaker has counted a failure")
        for pool in found.away:
            self.print(f"pool {pool} is not listed: its Redis does not answer")
        return None

    def _reset(self, kind: CircuitKind, name: str) -> None:
        ports = jobs.ports.production_ports()
        done = reset_circuit(kind, name, by=cli_actor(), leases=ports.leases)
        ports.send_wakes(done.wakes)
        closed = f"the circuit of {kind.value} {name} is closed"
        unchanged = f"{kind.value} {name} has no failures counted: nothing changed"
        self.report(
            {"kind": kind.value, "name": name, "changed": done.changed}, closed if done.changed else unchanged
        )


_COLOURS = {CircuitState.OPEN: "red", CircuitState.HALF_OPEN: "yellow"}


def circuit_table(struck: Sequence[CircuitEntry]) -> Table:
    rows = [
        (
            one.kind.value,
            one.name,
            one.pool,
            line((one.circuit.state.value, _COLOURS.get(one.circuit.state, "dim"))),
            str(one.circuit.strikes),
            str(one.circuit.opens),
            age(one.circuit.left_seconds) if one.circuit.left_seconds else "–",
        )
        for one in struck
    ]
    heads = ("kind", "name", "pool", "circuit", "failures", "opened", "rests for")
    return table(heads, rows, right=["failures", "opened"])
