"""Decides why a job waits, the most binding reason first. Pure: it reads only a snapshot. About other tenants
it contains only the number of jobs before this one.

A reason is binding if the job would still wait without all later reasons; so the first one is what to change
first. The texts are for clients and operators; docs/reference/explain.md lists the codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foundation.texts import counted
from gpus.errors import REDIS_AWAY
from jobs.domain.errors import ModelQueueFull, QuotaExhausted, RateLimited, TenantQueueFull
from jobs.domain.states import JobState, is_final
from jobs.explain.snapshot import Index, Later, Reason, Snapshot

NO_WORKER_SECONDS = 10.0
"""Silence after which a pool has no worker: a free slot with waiting jobs is woken every 2 s."""

WAITING = frozenset({JobState.QUEUED, JobState.RETRYING, JobState.SCHEDULED})
_AFTER_THE_PAUSE = (
    "After the pause one job tries; if it succeeds, the circuit closes. An operator can close it at once."
)


def explain(now: Snapshot) -> list[Reason]:
    """Return the reasons, the most binding first; never empty."""
    if now.state is not None and now.state not in WAITING:
        return [_not_waiting(now, now.state)]
    found = [*refused_at_submit(now), *_not_due(now), *_index(now)]
    if now.index is Index.WHOLE and now.queue_status.held:
        return [
            Reason(
                "starting",
                "A worker has reserved a slot for the job: it starts now, or after the short run "
                "on that slot.",
                "Nothing to do.",
            )
        ]
    found += [*_pauses(now), *_servers(now)]
    if now.index is Index.WHOLE:
        found += [*_model_circuit(now), *parked(now), *_capacity(now)]
    return found or [
        Reason(
            "next",
            "A slot is free, and the job is next.",
            "Nothing to do: the job starts within seconds.",
            {"free_slots": now.queue_status.slots.get("free", 0)},
        )
    ]


def _not_waiting(now: Snapshot, state: JobState) -> Reason:
    if is_final(state):
        error = f": {now.error_code}" if now.error_code else ""
        return Reason(
            "finished",
            f"The job does not wait: it is {state.value}{error}.",
            "Nothing to do: the job has ended."
            if state is not JobState.FAILED
            else "An operator can retry the job.",
            {"status": state.value, "error_code": now.error_code, "attempts": now.attempts},
        )
    evidence = {"server": now.server, "slot": now.slot, "attempts": now.attempts}
    if now.cancel_requested or state is JobState.CANCELLING:
        where = f" on {now.server}" if now.server else ""
        return Reason(
            "being_cancelled",
            f"The job does not wait: it ran{where} and is being cancelled.",
            "Nothing to do: the job ends once its GPU is proven free.",
            evidence,
        )
    return Reason("running", f"The job does not wait: it runs on {now.server}.", "Nothing to do.", evidence)


def _not_due(now: Snapshot) -> Iterator[Reason]:
    left = now.due_in_seconds
    if left is None or left <= 0:
        return
    if now.later is Later.RUN_AT:
        yield Reason(
            "later_start",
            f"The job is scheduled to start in {left:.0f} s (`run_at`).",
            "Nothing to do: it is queued at that time.",
            {"kind": now.later.value, "due_in_seconds": round(left, 3)},
        )
    else:
        yield Reason(
            "later_start",
            f"An attempt failed; the next one can start in {left:.1f} s.",
            "Nothing to do: the backoff before a retry ends by itself.",
            {"kind": now.later.value, "due_in_seconds": round(left, 3), "attempts": now.attempts},
        )


def _index(now: Snapshot) -> Iterator[Reason]:
    if now.index is Index.AWAY:
        yield Reason(
            "index_away",
            f"{REDIS_AWAY}; no job is started meanwhile.",
            "Jobs start again by themselves once Redis answers; none is lost.",
        )
    if now.index is Index.REBUILDING:
        yield Reason(
            "index_rebuilding",
            "The queue's index is being rebuilt from the database; no job is started meanwhile.",
            "Nothing to do: the rebuild takes seconds.",
        )


def _pauses(now: Snapshot) -> Iterator[Reason]:
    for code, subject, seconds in (
        ("system_paused", "The system", now.system_paused_seconds),
        ("model_paused", f"The model {now.model}", now.model_paused_seconds),
        ("tenant_paused", "The job's tenant", now.tenant_paused_seconds),
    ):
        if seconds is not None:
            yield Reason(
                code,
                f"{subject} is paused by an operator.",
                "An operator has to resume it; the job keeps its place.",
                {"paused_seconds": round(seconds, 1)},
            )


def _servers(now: Snapshot) -> Iterator[Reason]:
    servers = now.servers
    evidence = {"servers": servers.total, "on": servers.on, "draining": servers.draining, "off": servers.off}
    if servers.missing_runner:
        yield Reason(
            "no_runner",
            f"No installed runner supports {servers.missing_runner!r}, the model_type of {now.model}.",
            "An operator has to install the package with the runner, or change the model_type.",
            evidence | {"model_type": servers.missing_runner},
        )
    if not servers.total:
        yield Reason(
            "no_server",
            f"No GPU server is registered for {now.model}.",
            "An operator has to register a server that runs the model.",
            evidence,
        )
    elif not servers.on:
        code, state = ("draining", "draining") if servers.draining else ("servers_off", "switched off")
        yield Reason(
            code,
            f"All servers of {now.model} are {state}.",
            "An operator has to switch one of them on.",
            evidence,
        )
    elif not servers.slots:
        yield Reason(
            "no_slots",
            f"The servers of {now.model} have no slots.",
            "An operator has to give them slots.",
            evidence,
        )
    elif not servers.fit and servers.too_small:
        yield Reason(
            "too_large",
            f"No registered server has enough GPU memory for {now.model}: {servers.too_small_why}",
            "Start a worker with a larger GPU.",
            evidence | {"too_small": servers.too_small},
        )
    elif not servers.fit:
        yield Reason(
            "no_healthy_server",
            f"No server of {now.model} that is on passed its last health check.",
            "One of them has to become healthy again, or another server has to be registered.",
            evidence | {"unfit": servers.unfit},
        )


def _model_circuit(now: Snapshot) -> Iterator[Reason]:
    line = now.queue_status
    if line.model_circuit == "closed":
        return
    left = line.model_circuit_seconds
    yield Reason(
        "circuit_open",
        f"The circuit of {now.model} is open, because it failed repeatedly on its servers; "
        + (
            f"the pause lasts {left:.0f} s more."
            if line.model_circuit == "open" and left
            else "one job tries it now."
        ),
        _AFTER_THE_PAUSE,
        {"scope": "model", "state": line.model_circuit, "left_seconds": round(left, 1)},
    )


def _capacity(now: Snapshot) -> Iterator[Reason]:
    line, slots = now.queue_status, now.queue_status.slots
    if not now.servers.fit:
        # a lost server is unhealthy, and its slots are in quarantine
        yield from (reason for _, reason in _held_slots(now) if reason.code == "quarantined")
        return
    if line.model_circuit == "open" or line.parked or _is_paused(now):
        return
    free, busy = slots.get("free", 0), slots.get("busy", 0)
    if now.state is JobState.QUEUED and not line.in_line:
        yield Reason(
            "not_in_line",
            "The job's ticket is not in the queue yet.",
            "Nothing to do: the sweep `reconcile` adds it within half a minute.",
            {"waited_seconds": round(now.waited_seconds, 1)},
        )
    if free:
        if _no_worker(now):
            yield Reason(
                "no_worker",
                "A slot is free, but no worker consumes this pool's queue.",
                "An operator has to start a GPU worker for this pool.",
                {"free_slots": free, "asked_seconds": line.asked_seconds},
            )
        if line.position > free:
            yield from _behind(now)
        yield from passed_over(now)
        return
    held = sorted(_held_slots(now), key=lambda one: -one[0])
    if busy:
        yield from _behind(now)
        yield from passed_over(now)
        yield Reason(
            "all_busy",
            f"All slots that can run the job are busy ({busy}).",
            "Wait until a job on one of them ends, or add a server with free slots.",
            {"busy_slots": busy, "servers": line.servers},
        )
    yield from (reason for _, reason in held)
    if not busy:
        yield from _behind(now)


def _no_worker(now: Snapshot) -> bool:
    """Return True if a slot was free and a ticket was queued for `NO_WORKER_SECONDS`, and no worker claimed.
    Between two attempts a job has no ticket, and workers don't claim from an empty queue."""
    line = now.queue_status
    is_waiting = line.in_line and now.queued_seconds > NO_WORKER_SECONDS
    has_work = line.position > 1 if now.state is None else is_waiting
    is_silent = line.asked_seconds is None or line.asked_seconds > NO_WORKER_SECONDS
    return has_work and is_silent and line.free_seconds > NO_WORKER_SECONDS


def _is_paused(now: Snapshot) -> bool:
    return any(
        seconds is not None
        for seconds in (now.system_paused_seconds, now.model_paused_seconds, now.tenant_paused_seconds)
    )


def _held_slots(now: Snapshot) -> Iterator[tuple[int, Reason]]:
    line, slots = now.queue_status, now.queue_status.slots
    if count := slots.get("circuit", 0):
        yield (
            count,
            Reason(
                "circuit_open",
                f"Servers that can run the job failed repeatedly, so their circuits are open "
                f"({_slots(count)}).",
                _AFTER_THE_PAUSE,
                {"scope": "server", "slots": count, "left_seconds": round(line.circuit_seconds, 1)},
            ),
        )
    if count := slots.get("resting", 0):
        yield (
            count,
            Reason(
                "resting",
                f"Servers that can run the job reported that they are busy and get a pause "
                f"({_slots(count)}).",
                "Nothing to do: the pause ends by itself.",
                {"slots": count, "left_seconds": round(line.rest_seconds, 1)},
            ),
        )
    if count := slots.get("quarantined", 0):
        yield (
            count,
            Reason(
                "quarantined",
                f"{_slots(count)} that can run the job may still be busy with a lost run (quarantine).",
                "Wait until the server proves them free or restarts, or let an operator free them.",
                {"slots": count},
            ),
        )


def _slots(count: int) -> str:
    return counted(count, "slot")


def _behind(now: Snapshot) -> Iterator[Reason]:
    line = now.queue_status
    ahead = line.position - 1
    if ahead <= 0:
        return
    evidence = {
        "jobs_ahead": ahead,
        "own_jobs_ahead": line.own_ahead,
        "higher_priority_jobs": line.higher_bands,
        "gpu_seconds_ahead": round(ahead * line.mean_seconds, 1),
        "working_slots": line.working_slots,
    }
    # ahead of its share by more than a run: other tenants go first, even if its own queue is short
    debt = line.lead_seconds > 1.5 * line.mean_seconds and line.own_ahead < ahead
    if debt and not line.fifo:
        yield Reason(
            "lower_share",
            "The job's tenant recently got more than its share, so other tenants go first.",
            "Wait until the others have caught up, or let an operator raise the tenant's weight.",
            {"gpu_seconds_ahead_of_turn": round(line.lead_seconds, 1)},
        )
    yield Reason(
        "behind",
        f"About {counted(ahead, 'job')} of {counted(round(ahead * line.mean_seconds), 'GPU-second')} "
        f"{'runs' if ahead == 1 else 'run'} before this one.",
        "Wait for them, add slots, or let an operator raise the job's priority.",
        evidence,
    )


def passed_over(now: Snapshot) -> Iterator[Reason]:
    """Yield a reason if other jobs were started although this one was next, and that can happen again."""
    line = now.queue_status
    if line.near and (line.passed_over or line.slots.get("free")):
        yield Reason(
            "near_server",
            f"The job prefers {line.near}, where an earlier node of its run ran; while that server is busy, "
            f"another slot takes another job first, {line.most_passed_over} times at most.",
            "Nothing to do: the job starts where a slot is free, at the latest 2 seconds after it was first "
            "passed over.",
            {"server": line.near, "passed_over": line.passed_over, "at_most": line.most_passed_over},
        )
        return
    if not 0 < line.passed_over < line.most_passed_over or line.patience_seconds <= 0:
        return
    times = "once" if line.passed_over == 1 else f"{line.passed_over} times"
    yield Reason(
        "passed_over",
        f"A freed slot took another job {times} although this one was next: a job whose model is "
        "loaded there, or"
        " one that may run on the server that this job avoids.",
        "Nothing to do: the job starts when a slot with its model is free, after being passed over"
        f" {line.most_passed_over} times, or when `patience_seconds` have passed.",
        {
            "passed_over": line.passed_over,
            "at_most": line.most_passed_over,
            "patience_seconds": round(line.patience_seconds, 1),
        },
    )


# -- limits of the tenant and the model: at submit, and in the queue --------------------------------

CAP, QUOTA, PAUSE = "m", "q", "p"
"""Letters in `QueueStatus.parked` (`gpus/leasing/lua/includes/parked.lua`); `_pauses` reports the last
one."""

_NEW_DAY = "Wait until midnight UTC, when the quota is renewed, or let an operator raise it."
PARKED = {
    CAP: (
        "tenant_cap",
        "The job's tenant has reached its limit of running jobs (max_running).",
        "Wait until one of the tenant's jobs ends, or let an operator raise the limit.",
    ),
    QUOTA: ("quota", "The job's tenant has used its GPU-seconds of today.", _NEW_DAY),
}
"""Code, message and change, by letter."""
_QUOTA_AVAILABLE = (
    "The job's tenant has GPU-seconds available again: the job is queued within seconds.",
    "Nothing to do.",
)

SUBMIT_LIMITS = {
    RateLimited.code: ("rate", "Retry later, or let an operator raise the rate."),
    QuotaExhausted.code: ("quota", _NEW_DAY),
    TenantQueueFull.code: (
        "queue_full",
        "Wait until a job of the tenant starts, cancel one, or let an operator raise the limit.",
    ),
    ModelQueueFull.code: (
        "queue_full",
        "Wait until a job of the model starts, cancel one, or let an operator raise the limit.",
    ),
}
"""Code and change, by the code of the error that a submit would get."""


def refused_at_submit(now: Snapshot) -> Iterator[Reason]:
    """Yield the errors that a submit would get, for a job that is not submitted yet."""
    for refused in now.refusals:
        code, change = SUBMIT_LIMITS[refused.code]
        evidence: dict[str, Any] = {
            "refused_with": refused.code,
            "retry_after_seconds": refused.retry_after_seconds,
        }
        yield Reason(code, str(refused), change, evidence | (_quota(now) if code == "quota" else {}))


def parked(now: Snapshot) -> Iterator[Reason]:
    """Yield the reasons why the tenant's tickets are parked."""
    line = now.queue_status
    evidence = {CAP: {"running": line.running, "limit": line.max_running}, QUOTA: _quota(now)}
    reported = {SUBMIT_LIMITS[refused.code][0] for refused in now.refusals}
    for letter in line.parked:
        code, message, change = PARKED.get(
            letter,
            ("tenant_held", "The job's tenant gets no slot for now.", "Ask an operator for the reason."),
        )
        if code in reported or (letter == PAUSE and now.tenant_paused_seconds is not None):
            continue
        if letter == QUOTA and (now.quota is None or not now.quota.is_exhausted):
            message, change = _QUOTA_AVAILABLE
        yield Reason(code, message, change, evidence.get(letter, {"reason": letter}))


def _quota(now: Snapshot) -> dict[str, Any]:
    if now.quota is None:
        return {}
    return {
        "used_gpu_seconds": round(now.quota.used, 1),
        "limit_gpu_seconds": now.quota.limit,
        "resets_in_seconds": round(now.quota.left_seconds),
    }
