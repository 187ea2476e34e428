"""The fleet as a page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpus.errors import LeasingUnavailable
from gpus.leasing.values import SlotView
from gpus.protocol import split_slot


def view(slot: str = "s/0", state: str = "free", **values: Any) -> SlotView:
    is_held = state in ("leased", "adoptable", "settling")
    known: dict[str, Any] = {
        "pool": "flux",
        "resting": False,
        "warm_model": "flux",
        "job_id": "j" if is_held else None,
        "attempt_id": "a" if is_held else None,
        "epoch": 1,
        "model": "flux" if is_held else None,
        "held_seconds": 7.0 if is_held else 0.0,
        "expires_in_seconds": None,
    }
    return SlotView(slot=slot, state=state, **(known | values))


class Seen:
    """A lease layer that shows some slots; counts the questions."""

    def __init__(self, *views: SlotView, away: bool = False) -> None:
        self.views, self.away, self.asked = views, away, 0

    def slots_of(self, servers: Sequence[str]) -> list[SlotView]:
        self.asked += 1
        if self.away:
            raise LeasingUnavailable("away")
        return [one for one in self.views if split_slot(one.slot)[0] in servers]
