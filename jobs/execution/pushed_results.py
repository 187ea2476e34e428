"""Results that a GPU server pushes to the dispatcher instead of waiting to be polled.

A push carries the token that its run was sent with. The attempt's row decides whether the body is read at
all; a stored push is announced, and the worker that runs the attempt reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.fields.json import KeyTextTransform

from foundation.database import statements
from foundation.database.statements import value
from foundation.ids import made_at
from gpus.protocol import ModelSpec
from gpus.runners.http_runner import DONE, FAILED
from gpus.runners.log_tail import MAX_CHARS
from jobs.domain.errors import AttemptOver, TooManyPushes
from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import Attempt, Job, PushedResult
from jobs.ports import Ports

PUSH_TOKEN = "push"
"""Purpose of the signed attempt id (`foundation.secrets.signed`) that a push has to carry."""
PAUSE_SECONDS = 10.0
"""Beyond the limits of an attempt's pushes one in this time is read, so that a server which sent many log
lines can deliver its result."""
_job = statements.Read(
    lambda: Job.objects.filter(id=value(Job, "id")).values("model", "pool", "max_run_seconds", "state")
)
_locked_job = statements.Read(
    lambda: Job.objects.select_for_update(no_key=True).filter(id=value(Job, "id")).values("state")
)
_attempt = statements.Read(
    lambda: Attempt.objects.filter(id=value(Attempt, "id")).values("job_id", "started_at", "finished_at")
)
_pushed = statements.Read(
    lambda: (
        PushedResult.objects.filter(attempt_id=value(PushedResult, "attempt_id"))
        .annotate(status=KeyTextTransform("status", "body"))
        .values("pushes", "pushed_bytes", "received_at", "status")
    )
)
pushed_body = statements.Read(
    lambda: PushedResult.objects.filter(attempt_id=value(PushedResult, "attempt_id")).values_list(
        "body", flat=True
    )
)
"""The stored body of an attempt's push."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A push whose body may be sent.

    max_bytes: the body's limit. is_repeated: the attempt's final push is stored already, so the body need not
    be read. is_over: the attempt has ended."""

    max_bytes: int
    is_repeated: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class KnownAttempt:
    """An attempt that a GPU server names by its token. is_over: it has ended, or is older than its longest
    run."""

    spec: ModelSpec
    is_over: bool


def read_attempt(job_id: str, attempt_id: str, ports: Ports) -> KnownAttempt | None:
    """Return the attempt, whose row may not be committed yet; None if the job does not exist or the attempt
    belongs to another job."""
    job, attempt = _job.first(id=job_id), _attempt.first(id=attempt_id)
    if job is None or (attempt is not None and attempt["job_id"] != job_id):
        return None
    spec = ports.registry.spec_or_defaults(job["model"], job["pool"])
    return KnownAttempt(spec, _is_over(job, attempt, attempt_id, spec, ports.clock.now()))


def admit_push(job_id: str, attempt_id: str, ports: Ports) -> Admitted | None:
    """Decide whether a push is read, before its body is.

    Returns None if the job does not exist or the attempt belongs to another job.
    Raises AttemptOver, TooManyPushes.
    """
    known = read_attempt(job_id, attempt_id, ports)
    if known is None:
        return None
    is_over = known.is_over
    max_bytes = min(known.spec.max_response_bytes, settings.DISPATCHER.max_push_bytes)
    pushed = _pushed.first(attempt_id=attempt_id)
    if pushed is not None and is_final(pushed["status"]):
        return Admitted(max_bytes, is_repeated=True, is_over=is_over)
    if is_over:
        raise AttemptOver
    if pushed is not None:
        _check_count(pushed, ports.clock.now())
    return Admitted(max_bytes)


def count_push(attempt_id: str, size: int, now: datetime) -> None:
    """Add a push that was read to the attempt's counts. size: of its body, bytes."""
    PushedResult.objects.filter(attempt_id=attempt_id).update(
        pushes=F("pushes") + 1, pushed_bytes=F("pushed_bytes") + size, received_at=now
    )


def is_final(status: Any) -> bool:
    """Return True if a push with this status ends the run."""
    return str(status or "").lower() in DONE | FAILED


def _is_over(
    job: dict[str, Any], attempt: dict[str, Any] | None, attempt_id: str, spec: ModelSpec, now: datetime
) -> bool:
    """Return True if the attempt has ended or is older than its longest run.

    A push may arrive before its attempt's row is committed: then the time in the attempt's id counts, and the
    job must not be final."""
    if attempt is None:
        if job["state"] in FINAL_JOB_STATES:
            return True
        began = datetime.fromtimestamp(made_at(attempt_id), UTC)
    elif attempt["finished_at"] is not None:
        return True
    else:
        began = attempt["started_at"]
    knobs = settings.DISPATCHER
    longest = min(spec.run_limit_seconds, job["max_run_seconds"] or spec.run_limit_seconds)
    spare = knobs.lease_seconds + 2 * knobs.clock_tolerance_seconds  # a takeover, and two hosts' clocks
    return now - began > timedelta(seconds=longest + spare)


def _check_count(pushed: dict[str, Any], now: datetime) -> None:
    knobs = settings.DISPATCHER
    rest = PAUSE_SECONDS - (now - pushed["received_at"]).total_seconds()
    if rest <= 0:
        return
    for number, most, unit in (
        (pushed["pushes"], knobs.pushes_per_attempt, "pushes"),
        (pushed["pushed_bytes"], knobs.push_bytes_per_attempt, "bytes of pushes"),
    ):
        if number >= most:
            why = f"{number} {unit} of this attempt were read, of {most}; then one in {PAUSE_SECONDS:g} s."
            raise TooManyPushes(why, retry_after_seconds=max(1.0, rest))


def _latest_logs(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a push that does not end its run: the end of its log."""
    kept = {name: body[name] for name in ("status", "logs", "logs_offset") if name in body}
    logs, offset = kept.get("logs"), kept.get("logs_offset", 0)
    if isinstance(logs, str) and isinstance(offset, int) and len(logs) > MAX_CHARS:
        kept |= {"logs": logs[-MAX_CHARS:], "logs_offset": offset + len(logs) - MAX_CHARS}
    return kept


def accept_push(job_id: str, attempt_id: str, body: Mapping[str, Any], size: int, *, ports: Ports) -> None:
    """Store an admitted push (`admit_push`); it is durable when this returns.

    The first final push of an attempt is kept, and before it the latest log lines. Only the worker that runs
    the attempt ends it.
    size: of the body as sent, bytes. Raises AttemptOver if the job ended while the body was read: its data
    may be erased by now.
    """
    now = ports.clock.now()
    kept = dict(body) if is_final(body.get("status")) else _latest_logs(body)
    pushed = PushedResult(
        attempt_id=attempt_id,
        job_id=job_id,
        body=kept,
        received_at=now,
        pushes=1,
        pushed_bytes=size,
    )
    with transaction.atomic():
        job = _locked_job.first(id=job_id)  # an erasure locks it, too
        if job is None or job["state"] in FINAL_JOB_STATES:
            raise AttemptOver
        if not statements.insert(pushed, ignore_conflicts=True):
            count_push(attempt_id, size, now)
            _keep_latest(attempt_id, kept)
    ports.announce([job_id])


def _keep_latest(attempt_id: str, body: dict[str, Any]) -> None:
    """Replace the stored push, unless it is final: log lines that arrive late must not replace a result."""
    stored = PushedResult.objects.select_for_update().filter(attempt_id=attempt_id).first()
    if stored is not None and not is_final(stored.body.get("status")):
        PushedResult.objects.filter(attempt_id=attempt_id).update(body=body)
