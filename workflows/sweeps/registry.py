"""The sweeps of workflows by name; they run beside those of `jobs`."""

from __future__ import annotations

from collections.abc import Mapping

from jobs.ports import Ports
from jobs.sweeps.registry import Entry
from workflows.models import has_live_runs
from workflows.sweeps import (
    cancelling_runs,
    due_schedules,
    due_waits,
    ended_firings,
    erasing_runs,
    inline_versions,
    lost_ends,
    old_firings,
    old_runs,
    old_signals,
    stalled_runs,
    unread_notices,
)


class WorkflowSweeps:
    """The sweeps of workflows in one process."""

    def __init__(self) -> None:
        self._due_schedules = due_schedules.DueSchedulesSweep()
        self._erasing_runs = erasing_runs.ErasingRunsSweep()

    def entries(self) -> Mapping[str, Entry]:
        """Return the entries by name, in the order in which a tick runs them."""
        return {
            "due_waits": Entry(
                due_waits.sweep, due_waits.PERIOD_SECONDS, is_needed=_are_runs_live, any_layout=True
            ),
            "unread_notices": Entry(
                unread_notices.sweep, unread_notices.PERIOD_SECONDS, is_needed=_are_runs_live
            ),
            "cancelling_runs": Entry(
                cancelling_runs.sweep, cancelling_runs.PERIOD_SECONDS, is_needed=_are_runs_live
            ),
            "lost_ends": Entry(lost_ends.sweep, lost_ends.PERIOD_SECONDS, slow=True, any_layout=True),
            "stalled_runs": Entry(stalled_runs.sweep, stalled_runs.PERIOD_SECONDS, slow=True),
            "erasing_runs": Entry(
                self._erasing_runs,
                erasing_runs.PERIOD_SECONDS,
                slow=True,
                is_needed=erasing_runs.is_needed,
                any_layout=True,
            ),
            "due_schedules": Entry(
                self._due_schedules,
                due_schedules.PERIOD_SECONDS,
                slow=True,
                is_needed=due_schedules.is_needed,
            ),
            "ended_firings": Entry(
                ended_firings.sweep,
                ended_firings.PERIOD_SECONDS,
                slow=True,
                is_needed=ended_firings.is_needed,
                any_layout=True,
            ),
            "old_firings": Entry(old_firings.sweep, old_firings.PERIOD_SECONDS, slow=True, any_layout=True),
            "old_runs": Entry(old_runs.sweep, old_runs.PERIOD_SECONDS, slow=True, any_layout=True),
            "old_signals": Entry(old_signals.sweep, old_signals.PERIOD_SECONDS, slow=True, any_layout=True),
            "inline_versions": Entry(
                inline_versions.sweep, inline_versions.PERIOD_SECONDS, slow=True, any_layout=True
            ),
        }


def _are_runs_live(_ports: Ports) -> bool:
    return has_live_runs()
