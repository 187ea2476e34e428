"""What its tenant, or its model, is limited to: at the door, and in line. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jobs.domain.errors import ModelQueueFull, QuotaExhausted, RateLimited, TenantQueueFull
from jobs.explain.snapshot import Reason, Snapshot

CAP, QUOTA, PAUSE = "m", "q", "p"
"""The letters of `parked` in the line; the pauses say the last one themselves."""

_NEW_DAY = "The quota begins anew at midnight UTC, or an operator raises it."
HELD = {
    CAP: ("tenant_cap", "Its tenant runs as many jobs as it may at once.", "One of its jobs ends."),
    QUOTA: ("quota", "Its tenant has used its GPU-seconds for today.", _NEW_DAY),
}
"""Code, message and change, by letter."""
_LET_GO = (
    "Its tenant has GPU-seconds of today again: it goes on within seconds.",
    "Nothing needs to change.",
)

DOOR = {
    RateLimited.code: ("rate", "Time passes, or an operator raises the rate."),
    QuotaExhausted.code: ("quota", _NEW_DAY),
    TenantQueueFull.code: (
        "queue_full",
        "A waiting job of its tenant starts or is cancelled, or an operator raises the limit.",
    ),
    ModelQueueFull.code: (
        "queue_full",
        "A waiting job of the model starts or is cancelled, or an operator raises the limit.",
    ),
}
"""Code and change, by the code of what a submit would be refused with."""


def refused_at_submit(now: Snapshot) -> Iterator[Reason]:
    """What a submit would be refused with: of a job that is only thought of."""
    for refused in now.refusals:
        code, change = DOOR[refused.code]
        evidence: dict[str, Any] = {
            "refused_with": refused.code,
            "retry_after_seconds": refused.retry_after_seconds,
        }
        yield Reason(code, str(refused), change, evidence | (_quota(now) if code == "quota" else {}))


def held_back(now: Snapshot) -> Iterator[Reason]:
    """Why its tenant's tickets are parked."""
    line = now.outlook
    evidence = {CAP: {"running": line.running, "limit": line.most_running}, QUOTA: _quota(now)}
    said = {DOOR[refused.code][0] for refused in now.refusals}
    for letter in line.parked:
        code, message, change = HELD.get(
            letter, ("tenant_held", "Its tenant gets no new slot for now.", "An operator can tell.")
        )
        if code in said or (letter == PAUSE and now.tenant_paused_seconds is not None):
            continue
        if letter == QUOTA and (now.quota is None or not now.quota.is_exhausted):
            message, change = _LET_GO
        yield Reason(code, message, change, evidence.get(letter, {"reason": letter}))


def _quota(now: Snapshot) -> dict[str, Any]:
    if now.quota is None:
        return {}
    return {
        "used_gpu_seconds": round(now.quota.used, 1),
        "limit_gpu_seconds": now.quota.limit,
        "resets_in_seconds": round(now.quota.left_seconds),
    }
