"""Results that GPU servers push: the token that allows it, which push is read at all (decided by the
attempt's rows, before its body is read), and how it is stored. Its attempt's holder is told afterwards."""

from __future__ import annotations

import hmac
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
from gpus.registry import queries as registry
from gpus.runners.answers import DONE, FAILED
from jobs.domain.errors import AttemptOver, TooManyPushes
from jobs.domain.states import FINAL_JOB_STATES
from jobs.models import Attempt, Job, PushedResult
from jobs.ports import Ports

_job = statements.Read(
    lambda: Job.objects.filter(id=value(Job, "id")).values("model", "max_run_seconds", "state")
)
_attempt = statements.Read(
    lambda: Attempt.objects.filter(id=value(Attempt, "id")).values("job_id", "started_at", "finished_at")
)
_pushed = statements.Read(
    lambda: (
        PushedResult.objects.filter(attempt_id=value(PushedResult, "attempt_id"))
        .annotate(status=KeyTextTransform("status", "body"))
        .values("pushes", "pushed_bytes", "status")
    )
)


RETRY_AFTER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Admitted:
    """max_bytes: of the body. is_repeated: the attempt's final push is stored; the body need not be read.
    is_over: the attempt's holder has ended it."""

    max_bytes: int
    is_repeated: bool = False
    is_over: bool = False


def admit_push(job_id: str, attempt_id: str, now: datetime) -> Admitted | None:
    """None: there is no such job, or the attempt is another job's. Raises AttemptOver, TooManyPushes."""
    job, attempt = _job.first(id=job_id), _attempt.first(id=attempt_id)
    if job is None or (attempt is not None and attempt["job_id"] != job_id):
        return None
    spec = registry.model_spec(job["model"]) or ModelSpec(job["model"], job["model"])
    max_bytes = min(spec.max_response_bytes, settings.DISPATCHER.max_push_bytes)
    pushed = _pushed.first(attempt_id=attempt_id)
    is_over = _is_over(job, attempt, attempt_id, spec, now)
    if pushed is not None and is_final(pushed["status"]):
        return Admitted(max_bytes, is_repeated=True, is_over=is_over)
    if is_over:
        raise AttemptOver
    if pushed is not None:
        _check_count(pushed["pushes"], pushed["pushed_bytes"])
    return Admitted(max_bytes)


def count_push(attempt_id: str, size: int) -> None:
    """One more that was read. size: of its body, bytes."""
    PushedResult.objects.filter(attempt_id=attempt_id).update(
        pushes=F("pushes") + 1, pushed_bytes=F("pushed_bytes") + size
    )


def is_final(status: Any) -> bool:
    return str(status or "").lower() in DONE | FAILED


def _is_over(
    job: dict[str, Any], attempt: dict[str, Any] | None, attempt_id: str, spec: ModelSpec, now: datetime
) -> bool:
    """Ended, or older than its longest run. A push may be earlier than its attempt's row: then the time in
    its id counts, and the job must still be going on."""
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


def _check_count(pushes: int, size: int) -> None:
    knobs = settings.DISPATCHER
    for number, most, unit in (
        (pushes, knobs.pushes_per_attempt, "pushes"),
        (size, knobs.push_bytes_per_attempt, "bytes of pushes"),
    ):
        if number >= most:
            why = f"{number} {unit} of this attempt were read, the most are {most}."
            raise TooManyPushes(why, retry_after_seconds=RETRY_AFTER_SECONDS)


pushed_body = statements.Read(
    lambda: PushedResult.objects.filter(attempt_id=statements.value(PushedResult, "attempt_id")).values_list(
        "body", flat=True
    )
)


def accept_push(job_id: str, attempt_id: str, body: Mapping[str, Any], size: int, *, ports: Ports) -> None:
    """For an admitted push (`admit_push`). Durable before it returns; the first final push of
    an attempt stays. Only the holder of the attempt finishes it. size: of the body as sent, bytes."""
    pushed = PushedResult(
        attempt_id=attempt_id,
        job_id=job_id,
        body=dict(body),
        received_at=ports.clock.now(),
        pushes=1,
        pushed_bytes=size,
    )
    with transaction.atomic():
        is_first = statements.insert(pushed, ignore_conflicts=True)
    if not is_first:
        count_push(attempt_id, size)
        if is_final(body.get("status")) and not is_final(
            (pushed_body.first(attempt_id=attempt_id) or {}).get("status")
        ):
            PushedResult.objects.filter(attempt_id=attempt_id).update(body=dict(body))
    ports.announce([job_id])


def push_token(attempt_id: str) -> str:
    """``<attempt id>.<40 hex digits>``, an HMAC of the id: it is verified without a row."""
    return f"{attempt_id}.{_mac(attempt_id)}"


def attempt_of_token(token: str) -> str | None:
    """The attempt that the token was made for; None if it was not made here."""
    attempt_id, _, mac = token.partition(".")
    return attempt_id if hmac.compare_digest(mac.encode(), _mac(attempt_id).encode()) else None


def _mac(attempt_id: str) -> str:
    key = (settings.DISPATCHER.secret_key or settings.SECRET_KEY).encode()
    return hmac.digest(key, b"push:" + attempt_id.encode(), "sha256").hex()[:40]
