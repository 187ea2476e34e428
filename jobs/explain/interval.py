"""When a waiting job will start: a median and a bound that nine in ten starts keep. Pure.

The line makes a first guess: the job's position × mean GPU-seconds of what waits ÷ slots that work. How wrong
such guesses were it learns from the fleet's real starts, per pool and decade of the guess
(gpus/leasing/lua/includes/forecast.lua). What is known to come before that (a later start, a rest) is added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpus.leasing.values import Outlook, StartsIn
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
"""Nobody knows when these end; as the first reason they leave no forecast. A quota does not where its day is
known: it ends with that."""


def starts_in(now: Snapshot, reasons: Sequence[Reason]) -> StartsIn | None:
    """None where the job does not wait, would be refused, or nobody can know."""
    day = now.quota if any(reason.code == "quota" for reason in reasons) else None
    first = next((reason.code for reason in reasons if day is None or reason.code != "quota"), "")
    if now.refusals or now.index is not Index.WHOLE or first in UNKNOWABLE or first in _NOT_WAITING:
        return None
    line = now.outlook
    before = max(0.0, now.due_in_seconds or 0.0)
    if day is not None and day.is_exhausted:
        before = max(before, day.left_seconds)
    if line.model_circuit == "open":
        before += line.model_circuit_seconds
    before = max(before, _all_rest_seconds(line))
    p50 = before + line.guess_seconds * math.exp(line.p50_log)
    p90 = before + line.guess_seconds * math.exp(line.p90_log)
    return StartsIn(round(p50, 3), round(max(p50, p90), 3), line.seen)


def _all_rest_seconds(line: Outlook) -> float:
    """Until the first slot's rest ends, where none that could run it is free or busy."""
    slots = line.slots
    if slots.get("free", 0) or slots.get("busy", 0):
        return 0.0
    rests = (("resting", line.rest_seconds), ("circuit", line.circuit_seconds))
    return min((left for kind, left in rests if slots.get(kind, 0)), default=0.0)


_NOT_WAITING = frozenset({"running", "being_cancelled", "finished", "starting"})
