"""All sweeps by name: what runs how often, and which of them may take long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from jobs.ports import Ports
from jobs.sweeps import (
    cancelling,
    checkpoint,
    deadlines,
    due_callbacks,
    due_retries,
    due_starts,
    expired_leases,
    fill,
    fleet_time,
    generation,
    index_switch,
    lock_sync,
    long_waits,
    mirror_registry,
    orphans,
    quarantine,
    quotas,
    reconcile,
    refusals,
    retention,
    rollups,
    silent_workers,
    stray_attempts,
)
from jobs.sweeps.base import Sweep


@dataclass(frozen=True, slots=True)
class Entry:
    """slow: waits for servers or walks long tables, so it gets a thread of its own. is_needed: a quick look
    whether the thread is worth it. any_layout: it does nothing with the index, so a process whose layout is
    not in use runs it too."""

    sweep: Sweep
    period_seconds: float
    slow: bool = False
    is_needed: Callable[[Ports], bool] | None = None
    any_layout: bool = False


class Sweeps:
    """All sweeps of one process; those that remember something between runs are objects of their own."""

    def __init__(self) -> None:
        self._generation = generation.GenerationSweep()
        self._due_callbacks = due_callbacks.DueCallbacksSweep()
        self._mirror_registry = mirror_registry.MirrorRegistrySweep()
        self._quotas = quotas.QuotasSweep()
        self._orphans = orphans.OrphansSweep()
        self._reconcile = reconcile.ReconcileSweep()
        self._lock_sync = lock_sync.LockSyncSweep()
        self._rollups = rollups.RollupsSweep()

    def entries(self, knobs: Any = None) -> Mapping[str, Entry]:
        """By name, in the order in which a tick runs them; read anew, so that settings count. An index that
        is not whole comes first: without it the others of Redis have nothing to do. knobs: the periods; of
        the settings, if none are given.

        An entry is the sweep's declaration. From it follow its ticks, its age in /metrics and in `doctor`,
        and its line in docs/reference/sweeps.md (`manage.py write_docs`), with the first paragraph of its
        module's docstring.
        """
        knobs = knobs or settings.DISPATCHER
        return {
            "index_switch": Entry(
                index_switch.sweep,
                index_switch.PERIOD_SECONDS,
                slow=True,
                is_needed=index_switch.is_needed,
                any_layout=True,
            ),
            "generation": Entry(self._generation, 1.0, slow=True, is_needed=generation.is_needed),
            "expired_leases": Entry(expired_leases.sweep, knobs.sweep_seconds),
            "due_retries": Entry(due_retries.sweep, 1.0),
            "due_starts": Entry(due_starts.sweep, 1.0),
            "deadlines": Entry(deadlines.sweep, 1.0),
            "long_waits": Entry(long_waits.sweep, long_waits.PERIOD_SECONDS),
            "fill": Entry(fill.sweep, knobs.sweep_seconds),
            "due_callbacks": Entry(self._due_callbacks, 1.0, any_layout=True),
            "fleet_time": Entry(fleet_time.sweep, fleet_time.PERIOD_SECONDS),
            "mirror_registry": Entry(self._mirror_registry, 5.0),
            "silent_workers": Entry(silent_workers.sweep, knobs.sweep_seconds),
            "quotas": Entry(self._quotas, quotas.PERIOD_SECONDS),
            "quarantine": Entry(
                quarantine.sweep, knobs.probe_seconds, slow=True, is_needed=quarantine.is_needed
            ),
            "cancelling": Entry(cancelling.sweep, cancelling.PERIOD_SECONDS),
            "orphans": Entry(self._orphans, 10.0, slow=True, is_needed=orphans.is_needed),
            "stray_attempts": Entry(stray_attempts.sweep, stray_attempts.PERIOD_SECONDS),
            "reconcile": Entry(self._reconcile, knobs.reconcile_seconds, slow=True),
            "lock_sync": Entry(self._lock_sync, knobs.lock_sync_seconds, slow=True),
            "retention": Entry(retention.sweep, 3600.0, slow=True, any_layout=True),
            "checkpoint": Entry(
                checkpoint.sweep, 1.0, slow=True, is_needed=checkpoint.is_needed, any_layout=True
            ),
            "refusals": Entry(refusals.sweep, refusals.PERIOD_SECONDS, slow=True, any_layout=True),
            "rollups": Entry(self._rollups, rollups.PERIOD_SECONDS, slow=True, any_layout=True),
        }
