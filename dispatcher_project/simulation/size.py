"""How much happens in one seed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """names: which faults; all of them where empty. keeps_history: also of good seeds."""

    jobs: int = 40
    faults: int = 20
    names: tuple[str, ...] = ()
    keeps_history: bool = False
