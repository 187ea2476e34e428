"""`circuits`: servers and models that failed last, as lines and as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatcher_project.terminal.paint import Paint, age, table
from gpus.protocol import CircuitState
from gpus.services.circuits import Struck

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


def circuit_document(one: Struck) -> dict[str, Any]:
    """As `GET /admin/circuits` tells it; a test holds the two together."""
    return {
        "kind": one.kind.value,
        "name": one.name,
        "pool": one.pool,
        "state": one.circuit.state.value,
        "failures": one.circuit.strikes,
        "opened": one.circuit.opens,
        "left_seconds": round(one.circuit.left_seconds, 3),
    }
