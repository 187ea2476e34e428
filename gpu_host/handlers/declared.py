"""What a model says of itself. Pure values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpu_host.handlers.errors import ContractError

_POSITIVE = ("vram_mb", "max_run_seconds", "max_load_seconds", "quiet_seconds")
MAX_AT_ONCE = 64
HELD_OUTSIDE = ("", "ours", "theirs")


@dataclass(frozen=True, slots=True)
class Declared:
    """One model of a GPU process.

    vram_mb: what it needs with a run in it, MiB; None: measured at its first load. max_run_seconds,
    max_load_seconds: after these the process is replaced. quiet_seconds: without progress for so long, on an
    idle GPU, a run counts as hung; None: never. warm_seconds: how long it stays loaded after its last run.
    at_once: so many runs of it at a time. min_resident: stays loaded however idle, and goes last for another
    model. held_outside: who holds its memory if it is not the process that loads it: "ours", processes that
    are counted as ours and outlive that one; "theirs", what is counted among others. Its `unload` is also
    called where that process did not load it.
    """

    name: str
    vram_mb: float | None = None
    max_run_seconds: float | None = None
    max_load_seconds: float = 600.0
    quiet_seconds: float | None = None
    warm_seconds: float = 300.0
    at_once: int = 1
    min_resident: bool = False
    held_outside: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def declared_by(name: str, source: Any) -> Declared:
    """Reads the attributes of a module, a class or a function. Raises ContractError."""
    found = {
        field.name: getattr(source, field.name)
        for field in fields(Declared)
        if field.name != "name" and hasattr(source, field.name)
    }
    for field in _POSITIVE:
        value = found.get(field)
        if value is not None and not _is_number(value, above=0.0):
            raise ContractError(f"{name}: {field} is a number above 0, not {value!r}")
    if "warm_seconds" in found and not _is_number(found["warm_seconds"], above=-1e-9):
        raise ContractError(f"{name}: warm_seconds is a number from 0, not {found['warm_seconds']!r}")
    at_once = found.get("at_once", 1)
    if isinstance(at_once, bool) or not isinstance(at_once, int) or not 1 <= at_once <= MAX_AT_ONCE:
        raise ContractError(f"{name}: at_once is 1 to {MAX_AT_ONCE}, not {at_once!r}")
    if found.get("held_outside", "") not in HELD_OUTSIDE:
        raise ContractError(f"{name}: held_outside is one of {HELD_OUTSIDE}, not {found['held_outside']!r}")
    return Declared(name, **found)


def read_declared(said: Mapping[str, Any]) -> Declared:
    """What `Declared.as_json` made."""
    return Declared(**said)


def _is_number(value: Any, *, above: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value > above
