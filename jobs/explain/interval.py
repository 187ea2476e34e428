"""Estimates when a waiting job will start, as median and 90th percentile. Pure.

The first estimate is position × mean GPU-seconds of waiting jobs ÷ working slots. It is corrected by the
errors of earlier estimates, learned from real starts per pool and decade of the estimate
(`gpus/leasing/lua/includes/forecast.lua`). Known delays (`run_at`, backoff, pauses) are added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpus.leasing.values import QueueStatus, StartsIn
from jobs.explain.snapshot import Index, Reason, Snapshot

UNKNOWABLE = frozenset(
    {
        "index_away",
        "system_paused",
        "model_paused",
        "tenant_paused",
        "no_runner",
        "no_server",
        "draining",
        "servers_off",
        "no_slots",
        "no_healthy_server",
        "too_large",
        "no_worker",
        "tenant_cap",
        "quota",
        "tenant_held",
        "quarantined",
    }
)
"""Codes of reasons with an unknown end: as the first reason they prevent an estimate. A quota only does if
its day is unknown, otherwise it ends with the day."""


def starts_in(now: Snapshot, reasons: Sequence[Reason]) -> StartsIn | None:
    """Return the estimated start; None if the job does not wait, would be refused, or waits for an unknown
    time.

    reasons: as returned by `explain`.
    """
    day = now.quota if any(reason.code == "quota" for reason in reasons) else None
    first = next((reason.code for reason in reasons if day is None or reason.code != "quota"), "")
    if now.refusals or now.index is not Index.WHOLE or first in UNKNOWABLE or first in _NOT_WAITING:
        return None
    line = now.queue_status
    before = max(0.0, now.due_in_seconds or 0.0)
    if day is not None and day.is_exhausted:
        before = max(before, day.left_seconds)
    if line.model_circuit == "open":
        before += line.model_circuit_seconds
    before = max(before, _all_rest_seconds(line))
    p50 = before + line.guess_seconds * math.exp(line.p50_log)
    p90 = before + line.guess_seconds * math.exp(line.p90_log)
    return StartsIn(round(p50, 3), round(max(p50, p90), 3), line.seen)


def _all_rest_seconds(line: QueueStatus) -> float:
    """Return the seconds until the first slot's pause ends; 0 if a slot that can run the job is free or
    busy."""
    slots = line.slots
    if slots.get("free", 0) or slots.get("busy", 0):
        return 0.0
    rests = (("resting", line.rest_seconds), ("circuit", line.circuit_seconds))
    return min((left for kind, left in rests if slots.get(kind, 0)), default=0.0)


_NOT_WAITING = frozenset({"running", "being_cancelled", "finished", "starting"})
