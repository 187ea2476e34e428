from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.paint import Paint, age, table
from gpus.health.circuits import Struck, all_circuits, reset_circuit
from gpus.protocol import CircuitKind, CircuitState
from gpus.registry.audit import cli_actor
from jobs import ports as wiring


class Command(TerminalCommand):
    help = (
        "Circuit breakers: the servers and models that failed last. `circuits reset server NAME` and "
        "`circuits reset model NAME` close one: what is mended takes jobs at once."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("what", nargs="?", default="list", choices=["list", "reset"])
        parser.add_argument("kind", nargs="?", choices=[kind.value for kind in CircuitKind])
        parser.add_argument("name", nargs="?", default="", help="the server's or model's")

    def act(self, options: dict[str, Any]) -> int | None:
        kind, name = options["kind"], options["name"]
        if options["what"] == "reset":
            if not kind or not name:
                raise CommandError("which? `circuits reset server NAME` or `circuits reset model NAME`")
            return self._reset(CircuitKind(kind), name)
        if kind:
            raise CommandError("a kind and a name go with reset; `circuits` lists them all")
        found = all_circuits(wiring.production_ports().leases)
        if self.as_json:
            self.tell({"results": [one.as_json() for one in found.struck], "away": found.away})
            return None
        self.say(
            *(circuit_lines(found.struck, self.paint) if found.struck else ["no server or model failed last"])
        )
        for pool in found.away:
            self.say(f"of pool {pool} nothing is known: its Redis does not serve")
        return None

    def _reset(self, kind: CircuitKind, name: str) -> int | None:
        ports = wiring.production_ports()
        done = reset_circuit(kind, name, by=cli_actor(), leases=ports.leases)
        ports.send_wakes(done.wakes)
        if self.as_json:
            self.tell({"kind": kind.value, "name": name, "changed": done.changed})
        elif done.changed:
            self.say(f"the circuit of {kind.value} {name} is closed")
        else:
            self.say(f"{kind.value} {name} did not fail last: nothing changed")
        return None


_COLOURS = {CircuitState.OPEN: "red", CircuitState.HALF_OPEN: "yellow"}


def circuit_lines(struck: Sequence[Struck], paint: Paint) -> list[str]:
    rows = [
        (
            one.kind.value,
            one.name,
            one.pool,
            paint(one.circuit.state.value, _COLOURS.get(one.circuit.state, "dim")),
            str(one.circuit.strikes),
            str(one.circuit.opens),
            age(one.circuit.left_seconds) if one.circuit.left_seconds else "–",
        )
        for one in struck
    ]
    heads = ("kind", "name", "pool", "circuit", "failures", "opened", "rests for")
    return table(heads, rows, paint, right=["failures", "opened"])
