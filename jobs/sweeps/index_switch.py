"""An index whose layout this process does not know: switched to ours once nobody works in it any more, or
when an operator says so (`manage.py index switch`). A switch to a layout that no living sweeper knows is
cancelled."""

from __future__ import annotations

from gpus.models import Process
from gpus.protocol import FIRST_LAYOUT
from gpus.registry import processes
from jobs.operations import index_switch
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_groups

PERIOD_SECONDS = 1.0


def is_needed(ports: Ports) -> bool:
    """Also where older layouts' indexes exist, which have to stay closed."""
    layouts = ports.layouts
    return any(
        layouts.refusal(fleet) or layouts.state(fleet).layout > FIRST_LAYOUT
        for fleet in ports.registry.fleets()
    )


def sweep(ports: Ports) -> SweepCount:
    """repaired: indexes switched, or whose switch was cancelled, or closed again."""
    ports.layouts.refresh()
    ours = ports.layouts.layout

    def step(fleet: str) -> SweepCount:
        state = ports.layouts.state(fleet)
        if state.next_layout is None and state.layout != ours:
            limit = processes.silent_after().total_seconds()
            is_abandoned = index_switch.abandoned_seconds(fleet, state, ports) >= limit
            if is_abandoned and index_switch.begin_switch(fleet, ours):
                return _go_on(fleet, ports)
        elif state.next_layout == ours:
            return _go_on(fleet, ports)
        elif state.next_layout is not None and _nobody_switches(state.next_layout):
            return SweepCount(1, int(index_switch.cancel_switch(fleet, ports)))
        elif state.layout == ours:
            return SweepCount(1, int(index_switch.close_older(fleet, ports)))
        return SweepCount(1)

    return sweep_groups("index_switch", ports.registry.fleets(), step)


def _go_on(fleet: str, ports: Ports) -> SweepCount:
    progress = index_switch.continue_switch(fleet, ports)
    notes = tuple(f"{fleet}: the switch waits for {one}" for one in progress.waits_for)
    return SweepCount(1, int(progress.done), notes=notes)


def _nobody_switches(layout: int) -> bool:
    return not processes.living().filter(kind=Process.Kind.SWEEPS, layout=layout).exists()
