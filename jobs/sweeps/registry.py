"""All sweeps by name, with their periods and which of them run in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

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
    unknown_objects,
    unused_artifacts,
)
from jobs.sweeps.base import Sweep

Question = Callable[[Ports], bool]


@dataclass(frozen=True, slots=True)
class Entry:
    """Declaration of a sweep. slow: it waits for servers or reads long tables, so it runs in a thread of its
    own. is_needed: cheap check before it runs; one that several sweeps have is made once a tick. any_layout:
    it does not use the index, so a process whose key layout is not in use runs it, too."""

    sweep: Sweep
    period_seconds: float
    slow: bool = False
    is_needed: Question | None = None
    any_layout: bool = False


class Sweeps:
    """All sweeps of one process; sweeps with state between runs are objects."""

    def __init__(self) -> None:
        self._generation = generation.GenerationSweep()
        self._due_callbacks = due_callbacks.DueCallbacksSweep()
        self._mirror_registry = mirror_registry.MirrorRegistrySweep()
        self._quotas = quotas.QuotasSweep()
        self._orphans = orphans.OrphansSweep()
        self._reconcile = reconcile.ReconcileSweep()
        self._lock_sync = lock_sync.LockSyncSweep()
        self._unknown_objects = unknown_objects.UnknownObjectsSweep()
        self._rollups = rollups.RollupsSweep()
        self._more: dict[str, Entry] = {}
        for path in settings.DISPATCHER_SWEEPS:
            self._more |= import_string(path)().entries()

    def entries(self, periods: Any = None) -> Mapping[str, Entry]:
        """Return the entries by name, in the order in which a tick runs them.

        Repairs of the index come first, because the other sweeps on Redis need a complete index. An entry
        also yields the sweep's age in /metrics and `doctor`, and its line in docs/reference/sweeps.md
        (`manage.py write_docs`, from the first paragraph of the module docstring). periods:
        `DispatcherSettings`; default: the current settings.
        """
        return self._own(periods or settings.DISPATCHER) | self._more

    def _own(self, periods: Any) -> dict[str, Entry]:
        return {
            "index_switch": Entry(
                index_switch.sweep,
                index_switch.PERIOD_SECONDS,
                slow=True,
                is_needed=index_switch.is_needed,
                any_layout=True,
            ),
            "generation": Entry(self._generation, 1.0, slow=True, is_needed=generation.is_needed),
            "expired_leases": Entry(expired_leases.sweep, periods.sweep_seconds),
            "due_retries": Entry(due_retries.sweep, 1.0),
            "due_starts": Entry(due_starts.sweep, 1.0),
            "deadlines": Entry(deadlines.sweep, 1.0),
            "long_waits": Entry(long_waits.sweep, long_waits.PERIOD_SECONDS),
            "fill": Entry(fill.sweep, periods.sweep_seconds),
            "due_callbacks": Entry(self._due_callbacks, 1.0, any_layout=True),
            "fleet_time": Entry(fleet_time.sweep, fleet_time.PERIOD_SECONDS),
            "mirror_registry": Entry(self._mirror_registry, 5.0),
            "silent_workers": Entry(silent_workers.sweep, periods.sweep_seconds),
            "quotas": Entry(self._quotas, quotas.PERIOD_SECONDS),
            "quarantine": Entry(
                quarantine.sweep, periods.probe_seconds, slow=True, is_needed=quarantine.is_needed
            ),
            "cancelling": Entry(cancelling.sweep, cancelling.PERIOD_SECONDS),
            "orphans": Entry(self._orphans, 10.0, slow=True, is_needed=orphans.is_needed),
            "stray_attempts": Entry(stray_attempts.sweep, stray_attempts.PERIOD_SECONDS),
            "reconcile": Entry(self._reconcile, periods.reconcile_seconds, slow=True),
            "lock_sync": Entry(self._lock_sync, periods.lock_sync_seconds, slow=True),
            "retention": Entry(retention.sweep, 3600.0, slow=True, any_layout=True),
            "unused_artifacts": Entry(
                unused_artifacts.sweep,
                unused_artifacts.PERIOD_SECONDS,
                slow=True,
                is_needed=unused_artifacts.is_needed,
                any_layout=True,
            ),
            "unknown_objects": Entry(
                self._unknown_objects,
                unknown_objects.PERIOD_SECONDS,
                slow=True,
                is_needed=self._unknown_objects.is_needed,
                any_layout=True,
            ),
            "checkpoint": Entry(
                checkpoint.sweep, 1.0, slow=True, is_needed=checkpoint.is_needed, any_layout=True
            ),
            "refusals": Entry(refusals.sweep, refusals.PERIOD_SECONDS, slow=True, any_layout=True),
            "rollups": Entry(self._rollups, rollups.PERIOD_SECONDS, slow=True, any_layout=True),
        }
