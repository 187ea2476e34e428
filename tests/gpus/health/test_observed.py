from __future__ import annotations

import pytest

from gpus.leasing.values import SlotView
from gpus.models import Pool, Server
from gpus.reports import observed


def view(state: str, *, resting: bool = False) -> SlotView:
    return SlotView("s1/0", "p", state, resting, None, None, None, 0, None, 0.0, None)


@pytest.mark.parametrize(
    ("desired", "slots", "states", "seen"),
    [
        ("on", 2, "free free", "on"),
        ("on", 2, "leased leased", "on"),
        ("on", 1, "quarantined", "on"),
        ("on", 1, "leased off", "on"),  # its count was lowered: the one that runs has the only place
        ("on", 2, "leased off", "draining"),  # the system is paused
        ("on", 2, "off off", "off"),
        ("on", 0, "", "on"),
        ("draining", 2, "leased off", "draining"),
        ("draining", 2, "leased settling", "draining"),
        ("draining", 2, "off off", "off"),
        ("off", 1, "adoptable", "draining"),
        ("off", 2, "quarantined off", "off"),
        ("off", 2, "free free", "on"),  # the switch did not get there yet
    ],
)
def test_actual_state_is_reported_beside_desired_state(
    desired: str, slots: int, states: str, seen: str
) -> None:
    server = Server(name="s1", pool=Pool(name="p"), slots=slots, desired=desired)
    assert observed(server, [view(state) for state in states.split()]).state == seen


def test_slots_are_counted() -> None:
    server = Server(name="s1", pool=Pool(name="p"), slots=4)
    found = observed(server, [view("free"), view("free", resting=True), view("leased"), view("settling")])
    assert (found.slots, found.resting, found.running) == ({"free": 2, "leased": 1, "settling": 1}, 1, 2)
