"""Why a job waits, most binding reason first. Pure: it decides over a snapshot, and says nothing of other
tenants but how many jobs stand before this one.

A reason binds if the job would still wait were all those after it gone; so the first one is what to change
first.
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
"""A free slot with work for it is woken every two seconds; if nobody asked for so long, nobody listens."""

WAITING = frozenset({JobState.QUEUED, JobState.RETRYING, JobState.SCHEDULED})
_AFTER_A_REST = (
    "One job tries after the rest; if that ends well, all go on. An operator may close the circuit."
)


def explain(now: Snapshot) -> list[Reason]:
    """Never empty."""
    if now.state is not None and now.state not in WAITING:
        return [_not_waiting(now, now.state)]
    found = [*refused_at_submit(now), *_later(now), *_index(now)]
    if now.index is Index.WHOLE and now.outlook.held:
        return [
            Reason(
                "starting",
                "A worker has a slot for it: it starts now, or when the short run before it there ends.",
                "Nothing needs to change.",
            )
        ]
    found += [*_pauses(now), *_nowhere(now)]
    if now.index is Index.WHOLE:
        found += [*_model_circuit(now), *held_back(now), *_capacity(now)]
    return found or [
        Reason(
            "next",
            "Nothing keeps it: a slot is free, and it is next.",
            "Nothing needs to change: it starts within seconds.",
            {"free_slots": now.outlook.slots.get("free", 0)},
        )
    ]


def _not_waiting(now: Snapshot, state: JobState) -> Reason:
    if is_final(state):
        said = f": {now.error_code}" if now.error_code else ""
        return Reason(
            "finished",
            f"It does not wait: it is {state.value}{said}.",
            "Nothing: it is over." if state is not JobState.FAILED else "An operator may retry it.",
            {"status": state.value, "error_code": now.error_code, "attempts": now.attempts},
        )
    evidence = {"server": now.server, "slot": now.slot, "attempts": now.attempts}
    if now.cancel_requested or state is JobState.CANCELLING:
        where = f" on {now.server}" if now.server else ""
        return Reason(
            "being_cancelled",
            f"It does not wait: it ran{where} and is being cancelled.",
            "It ends once its GPU is proven free.",
            evidence,
        )
    return Reason("running", f"It does not wait: it runs on {now.server}.", "Nothing.", evidence)


def _later(now: Snapshot) -> Iterator[Reason]:
    left = now.due_in_seconds
    if left is None or left <= 0:
        return
    if now.later is Later.RUN_AT:
        yield Reason(
            "later_start",
            f"It was submitted to start later, in {left:.0f} s.",
            "It stands in line from that time on.",
            {"kind": now.later.value, "due_in_seconds": round(left, 3)},
        )
    else:
        yield Reason(
            "later_start",
            f"An attempt failed; the next one may begin in {left:.1f} s.",
            "The pause before a retry ends by itself.",
            {"kind": now.later.value, "due_in_seconds": round(left, 3), "attempts": now.attempts},
        )


def _index(now: Snapshot) -> Iterator[Reason]:
    if now.index is Index.AWAY:
        yield Reason(
            "index_away",
            f"{REDIS_AWAY}; nothing is started meanwhile.",
            "It goes on by itself once Redis answers: nothing is lost.",
        )
    if now.index is Index.REBUILDING:
        yield Reason(
            "index_rebuilding",
            "The queue's index is being rebuilt from the database; nothing is started meanwhile.",
            "It takes seconds and ends by itself.",
        )


def _pauses(now: Snapshot) -> Iterator[Reason]:
    for code, what, seconds in (
        ("system_paused", "Everything is", now.system_paused_seconds),
        ("model_paused", f"The model {now.model} is", now.model_paused_seconds),
        ("tenant_paused", "Its tenant is", now.tenant_paused_seconds),
    ):
        if seconds is not None:
            yield Reason(
                code,
                f"{what} paused by an operator.",
                "An operator resumes it; the job keeps its place.",
                {"paused_seconds": round(seconds, 1)},
            )


def _nowhere(now: Snapshot) -> Iterator[Reason]:
    servers = now.servers
    evidence = {"servers": servers.total, "on": servers.on, "draining": servers.draining, "off": servers.off}
    if servers.missing_runner:
        yield Reason(
            "no_runner",
            f"No installed runner speaks {servers.missing_runner!r}, the model_type of {now.model}.",
            "The package that brings the runner is installed again, or the model gets another model_type.",
            evidence | {"model_type": servers.missing_runner},
        )
    if not servers.total:
        yield Reason(
            "no_server",
            f"No GPU server is registered for {now.model}.",
            "A server that runs the model is registered.",
            evidence,
        )
    elif not servers.on:
        code, word = ("draining", "drain") if servers.draining else ("servers_off", "are switched off")
        yield Reason(
            code, f"All servers of {now.model} {word}.", "An operator switches one of them on.", evidence
        )
    elif not servers.slots:
        yield Reason(
            "no_slots",
            f"The servers of {now.model} have no slots.",
            "An operator gives them slots.",
            evidence,
        )
    elif not servers.fit and servers.too_small:
        yield Reason(
            "too_large",
            f"No server that is there has enough memory for {now.model}: {servers.too_small_why}",
            "A worker with a larger GPU joins, or the deadline to start passes.",
            evidence | {"too_small": servers.too_small},
        )
    elif not servers.fit:
        yield Reason(
            "no_healthy_server",
            f"No server of {now.model} that is on passed its last look at its health.",
            "One of them answers again, or another server is registered.",
            evidence | {"unfit": servers.unfit},
        )


def _model_circuit(now: Snapshot) -> Iterator[Reason]:
    line = now.outlook
    if line.model_circuit == "closed":
        return
    left = line.model_circuit_seconds
    yield Reason(
        "circuit_open",
        f"{now.model} failed again and again on its servers; "
        + (
            f"it rests for {left:.0f} s more."
            if line.model_circuit == "open" and left
            else "one job tries it now."
        ),
        _AFTER_A_REST,
        {"scope": "model", "state": line.model_circuit, "left_seconds": round(left, 1)},
    )


def _capacity(now: Snapshot) -> Iterator[Reason]:
    line, slots = now.outlook, now.outlook.slots
    if not now.servers.fit:
        # a server that was lost leaves both: it does not answer, and its slots are not given away
        yield from (reason for _, reason in _held_slots(now) if reason.code == "quarantined")
        return
    if line.model_circuit == "open" or line.parked or _is_paused(now):
        return
    free, busy = slots.get("free", 0), slots.get("busy", 0)
    if now.state is JobState.QUEUED and not line.in_line:
        yield Reason(
            "not_in_line",
            "Its ticket is not in the line yet.",
            "The reconciler puts it there within half a minute.",
            {"waited_seconds": round(now.waited_seconds, 1)},
        )
    if free:
        if _no_worker(now):
            yield Reason(
                "no_worker",
                "A slot is free, but no worker takes jobs from this queue.",
                "A GPU worker for this pool is started.",
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
            f"All slots that could run it are busy ({busy}).",
            "A job on one of them ends, or a server with free slots is added.",
            {"busy_slots": busy, "servers": line.servers},
        )
    yield from (reason for _, reason in held)
    if not busy:
        yield from _behind(now)


def _no_worker(now: Snapshot) -> bool:
    """A slot and a ticket for it were there all this time, and no worker asked. Between two tries a job has
    no ticket, and nobody asks where nothing is in line."""
    line = now.outlook
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
    line, slots = now.outlook, now.outlook.slots
    if count := slots.get("circuit", 0):
        yield (
            count,
            Reason(
                "circuit_open",
                f"Servers that could run it failed again and again; {_resting(count)}.",
                _AFTER_A_REST,
                {"scope": "server", "slots": count, "left_seconds": round(line.circuit_seconds, 1)},
            ),
        )
    if count := slots.get("resting", 0):
        yield (
            count,
            Reason(
                "resting",
                f"Servers that could run it said they are busy; {_resting(count)}.",
                "Their rest ends by itself.",
                {"slots": count, "left_seconds": round(line.rest_seconds, 1)},
            ),
        )
    if count := slots.get("quarantined", 0):
        yield (
            count,
            Reason(
                "quarantined",
                f"{counted(count, 'slot')} that could run it may still be busy with a run that nobody "
                "controls.",
                "Their server proves them free or restarts, or an operator frees them.",
                {"slots": count},
            ),
        )


def _resting(count: int) -> str:
    return counted(count, "slot rests", "slots rest")


def _behind(now: Snapshot) -> Iterator[Reason]:
    line = now.outlook
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
    # in debt by more than a run: others go first although its own line may be short
    debt = line.lead_seconds > 1.5 * line.mean_seconds and line.own_ahead < ahead
    if debt and not line.fifo:
        yield Reason(
            "lower_share",
            "Its tenant got more than its share lately: others have their turn first.",
            "The others catch up, or an operator raises its weight.",
            {"gpu_seconds_ahead_of_turn": round(line.lead_seconds, 1)},
        )
    yield Reason(
        "behind",
        f"About {counted(ahead, 'job')} of {counted(round(ahead * line.mean_seconds), 'GPU-second')} "
        f"{'goes' if ahead == 1 else 'go'} first.",
        "They run, more slots are added, or an operator moves it up.",
        evidence,
    )


def passed_over(now: Snapshot) -> Iterator[Reason]:
    """Other jobs went in its place although it was its turn, and that may happen again."""
    line = now.outlook
    if not 0 < line.passed_over < line.most_passed_over or line.patience_seconds <= 0:
        return
    times = "once" if line.passed_over == 1 else f"{line.passed_over} times"
    yield Reason(
        "passed_over",
        f"A slot that got free took another job in its place {times}: one whose model is loaded there, or one"
        " that may run on the server that this one avoids.",
        f"A slot that has its model loaded gets free; or that happened {line.most_passed_over} times, or its"
        " patience is over.",
        {
            "passed_over": line.passed_over,
            "at_most": line.most_passed_over,
            "patience_seconds": round(line.patience_seconds, 1),
        },
    )


# -- what its tenant, or its model, is limited to: at the door, and in line -------------------------

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
