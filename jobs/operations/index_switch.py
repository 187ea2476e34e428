"""Switches a fleet's index in Redis from one key layout to another, in steps that any process may repeat or
continue.

A switch begins in the `FleetIndex` row: from then on, processes that read it only keep the leases they hold.
Each step closes the old index in Redis, which stops all other use. Then it waits until every living worker of
the old layout has reported that its starts are committed, and every lease renewed there is a live attempt of
such a worker. Now the database has all runs: the row changes, and the index of the new layout is rebuilt
(`index_rebuild/rebuild.py`). Runs continue under their old worker, which writes their ends; the sweeps of the
new layout keep their slots while that worker lives (`sweeps/expired_leases.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from django.db import transaction
from django.db.models.functions import Now

from foundation.ids import new_id
from gpus.models import FleetIndex, Process
from gpus.protocol import FIRST_LAYOUT
from gpus.registry import processes
from gpus.registry.audit import record
from gpus.registry.layouts import IndexState, read_index_states
from jobs.domain.states import LIVE_ATTEMPT_STATES
from jobs.models import Attempt
from jobs.ports import Ports

log = structlog.get_logger(__name__)

PAGE = 500
MAX_NAMED = 5
"""Workers or attempts named in `Progress.waits_for`."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State of a switch. done: the new layout is in use. waits_for: short messages on what blocks the
    switch."""

    done: bool
    waits_for: tuple[str, ...] = ()


def begin_switch(fleet: str, layout: int, *, by: str | None = None) -> bool:
    """Begin the switch of a fleet's index to this layout; from now on the index is used only to keep leases.

    by: actor for the audit entry; None for a sweep. Returns False if the fleet has that layout already or
    another switch is in progress.
    """
    with transaction.atomic():
        FleetIndex.objects.get_or_create(fleet=fleet)
        begun = (
            FleetIndex.objects.filter(fleet=fleet, next_layout=None)
            .exclude(layout=layout)
            .update(next_layout=layout, switch=new_id())
        )
        if begun:
            record(by, "begin_index_switch", f"fleet:{fleet}", to=layout)
    if begun:
        log.info("index_switch_begun", fleet=fleet, layout=layout)
    return bool(begun)


def continue_switch(fleet: str, ports: Ports) -> Progress:
    """Do one step of the switch; safe to repeat. Raises LeasingUnavailable."""
    state = read_index_states().get(fleet, IndexState())
    if state.next_layout is None:
        return Progress(done=True)
    old = ports.index_gate(fleet, state.layout)
    old.close(f"switched to layout {state.next_layout}")
    workers = list(processes.live_processes().filter(kind=Process.Kind.GPU, layout=state.layout))
    ready = {worker.name for worker in workers if worker.is_ready(fleet, state.switch)}
    late = [worker.name for worker in workers if worker.name not in ready]
    waits = [f"{name}: its starts are not all committed yet" for name in late[:MAX_NAMED]]
    if not late:
        waits = _unaccounted_leases(old.activity().renewed, ready)
    if waits:
        return Progress(done=False, waits_for=tuple(waits))
    ports.index_gate(fleet, state.next_layout).discard()
    switched = FleetIndex.objects.filter(fleet=fleet, switch=state.switch).update(
        layout=state.next_layout, next_layout=None, switch="", changed_at=Now()
    )
    if switched:
        log.info("index_switched", fleet=fleet, before=state.layout, layout=state.next_layout)
    ports.layouts.refresh()
    return Progress(done=True)


def cancel_switch(fleet: str, ports: Ports, *, by: str | None = None) -> bool:
    """Cancel the switch: the old layout stays in use and its index is rebuilt.

    by: actor for the audit entry; None for a sweep. Returns False without a switch. Raises
    LeasingUnavailable.
    """
    state = read_index_states().get(fleet, IndexState())
    if state.next_layout is None:
        return False
    with transaction.atomic():
        cancelled = FleetIndex.objects.filter(fleet=fleet, switch=state.switch).update(
            next_layout=None, switch="", changed_at=Now()
        )
        if cancelled:
            record(by, "cancel_index_switch", f"fleet:{fleet}", to=state.next_layout)
    if cancelled:
        log.warning("index_switch_cancelled", fleet=fleet, layout=state.layout, instead_of=state.next_layout)
        ports.index_gate(fleet, state.layout).discard()
    ports.layouts.refresh()
    return bool(cancelled)


def reopen(fleet: str, ports: Ports) -> bool:
    """Make an index rebuildable that is in use but closed, because a cancelled switch stopped halfway or one
    step ran after the cancel. Returns True if it was closed. Raises LeasingUnavailable."""
    state, ours = read_index_states().get(fleet), ports.layouts.layout
    if state is None or (state.layout, state.next_layout) != (ours, None):
        return False
    gate = ports.index_gate(fleet, ours)
    if not gate.activity().closed_by:
        return False
    log.warning("closed_index_reopened", fleet=fleet, layout=ours)
    gate.discard()
    return True


def close_older(fleet: str, ports: Ports) -> bool:
    """Close the indexes of layouts older than the one in use; return True if one was open.

    Needed after a Redis restart without data, which loses the close: versions without `FleetIndex` would open
    their index again. Raises LeasingUnavailable.
    """
    state = ports.layouts.state(fleet)
    if state.next_layout is not None:
        return False  # the switch itself closes and discards indexes
    older = [ports.index_gate(fleet, layout) for layout in range(FIRST_LAYOUT, state.layout)]
    opened = [gate for gate in older if not gate.activity().closed_by]
    for gate in opened:
        gate.close(f"layout {state.layout} is in use")
    return bool(opened)


def _unaccounted_leases(renewed: Sequence[str], ready: set[str]) -> list[str]:
    """Return messages on leases renewed in the old index that have no row or a worker that is not ready.

    renewed: attempt ids. ready: names of workers.
    """
    found: list[str] = []
    for first in range(0, len(renewed), PAGE):
        page = renewed[first : first + PAGE]
        rows = {
            attempt: (state, worker)
            for attempt, state, worker in Attempt.objects.filter(id__in=page).values_list(
                "id", "state", "worker"
            )
        }
        for attempt in page:
            state, worker = rows.get(attempt, ("", ""))
            if not state:
                found.append(f"attempt {attempt}: its start is not committed yet")
            elif state in LIVE_ATTEMPT_STATES and worker not in ready:
                found.append(f"{worker}: its version does not support a switch; its runs must end first")
    return sorted(set(found))[:MAX_NAMED]


def abandoned_seconds(fleet: str, state: IndexState, ports: Ports) -> float:
    """Return for how many seconds the layout in use has lacked a GPU worker or a sweep process while this
    version's layout has both; 0 otherwise.

    Versions that write no heartbeat to the database are detected by their traces in Redis. Raises
    LeasingUnavailable.
    """
    since = ports.layouts.abandoned_since
    alive = set(processes.live_processes().values_list("kind", "layout"))
    runs, sweeps = ((kind, state.layout) in alive for kind in (Process.Kind.GPU, Process.Kind.SWEEPS))
    if (Process.Kind.GPU, ports.layouts.layout) not in alive or (runs and sweeps):
        since.pop(fleet, None)
        return 0.0
    signs = ports.index_gate(fleet, state.layout).activity()
    looked = math.inf if signs.swept_seconds is None else signs.swept_seconds
    is_swept = sweeps or looked < processes.silent_after().total_seconds()
    if is_swept and (runs or signs.renewed):
        since.pop(fleet, None)
        return 0.0
    now = ports.clock.monotonic()
    passed = now - since.setdefault(fleet, now)
    return passed if runs or sweeps or signs.renewed else max(passed, looked)
