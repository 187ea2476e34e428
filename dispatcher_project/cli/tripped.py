"""`circuits`: servers and models that failed last, as lines and as a document."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher_project.cli.paint import Paint, age, table
from gpus.health.circuits import Struck
from gpus.protocol import CircuitState

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
