"""An index with another key layout than this version's: switched to this version's layout once no process
uses the old one, or when an operator requests it (`manage.py index switch`). A switch to a layout that no
living sweep process supports is cancelled."""

from __future__ import annotations

from gpus.models import Process
from gpus.protocol import FIRST_LAYOUT
from gpus.registry import processes
from jobs.operations import index_switch
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_groups

PERIOD_SECONDS = 1.0


def is_needed(ports: Ports) -> bool:
    """Return True if a fleet uses another layout, or has indexes of older layouts, which must stay closed."""
    layouts = ports.layouts
    return any(
        layouts.refusal(fleet) or layouts.state(fleet).layout > FIRST_LAYOUT
        for fleet in ports.registry.fleets()
    )


def sweep(ports: Ports) -> SweepCount:
    """repaired: indexes that were switched or closed again, and switches that were cancelled."""
    ports.layouts.refresh()
    ours = ports.layouts.layout

    def step(fleet: str) -> SweepCount:
        state = ports.layouts.state(fleet)
        if state.next_layout is None and state.layout != ours:
            limit = processes.silent_after().total_seconds()
            is_abandoned = index_switch.abandoned_seconds(fleet, state, ports) >= limit
            if is_abandoned and index_switch.begin_switch(fleet, ours):
                return _continue_switch(fleet, ports)
        elif state.next_layout == ours:
            return _continue_switch(fleet, ports)
        elif state.next_layout is not None and _has_no_sweeper(state.next_layout):
            return SweepCount(1, int(index_switch.cancel_switch(fleet, ports)))
        elif state.layout == ours:
            return SweepCount(1, int(index_switch.close_older(fleet, ports)))
        return SweepCount(1)

    return sweep_groups("index_switch", ports.registry.fleets(), step)


def _continue_switch(fleet: str, ports: Ports) -> SweepCount:
    progress = index_switch.continue_switch(fleet, ports)
    notes = tuple(f"{fleet}: the switch waits for {one}" for one in progress.waits_for)
    return SweepCount(1, int(progress.done), notes=notes)


def _has_no_sweeper(layout: int) -> bool:
    return not processes.live_processes().filter(kind=Process.Kind.SWEEPS, layout=layout).exists()
