"""What a GPU server sends of a run beside the answer to its request: progress and partial output, which go to
the job's events, bounded and seldom written, and results that it pushes later.

The runner never waits for progress: pieces are joined here and written by the group commit, at intervals that
grow with the run's age. A run that ends before its first write writes no such event: its result is complete.

A push needs the token that its run was sent with. Whether it is read at all is decided by the attempt's rows,
before its body is read; once it is stored, the holder of the attempt is told.
"""

from __future__ import annotations

import hmac
import json
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.db.models.fields.json import KeyTextTransform

from foundation.database import statements
from foundation.database.statements import value
from foundation.ids import made_at
from gpus.protocol import Clock, ModelSpec
from gpus.runners.http_runner import DONE, FAILED
from gpus.runners.transport import Unreadable, check_storable
from jobs.domain.errors import AttemptOver, TooManyPushes
from jobs.domain.states import FINAL_JOB_STATES
from jobs.execution.group_commit import Writer
from jobs.models import Attempt, Job, PushedResult
from jobs.ports import Ports

log = structlog.get_logger()

GROWING_PAUSES = 20.0
"""A pause is at least this part of the run's time: a run of an hour writes about 140 times."""
MAX_EVENT_CHARS = 64 * 1024
MAX_OUTPUT_CHARS = 1024 * 1024
"""Characters of output in the events of a job's first attempt; the rest is counted, and is in the result. The
nth try gets 1/n of it: fifty tries together write less than five times this."""
LEAST_PROGRESS = 0.01
BACKLOG = 200
"""Backpressure: with more queued writes than this, no progress is written."""
Write = Callable[[str, Mapping[str, Any]], None]
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
pushed_body = statements.Read(
    lambda: PushedResult.objects.filter(attempt_id=value(PushedResult, "attempt_id")).values_list(
        "body", flat=True
    )
)
RETRY_AFTER_SECONDS = 60.0


def progress_events_of(
    write: Write, writer: Writer, clock: Clock, *, tries: int, rest_seconds: float
) -> ProgressEvents:
    """Return the buffer of one run. write: adds an event to the job. tries: the run's number among its job's
    tries, from 1."""
    return ProgressEvents(
        write,
        clock,
        rest_seconds=rest_seconds,
        allowance=MAX_OUTPUT_CHARS // tries,
        may_write=lambda: not writer.failing and writer.backlog < BACKLOG,
    )


class ProgressEvents:
    """The buffer of one attempt in this process. write: adds an event (kind, data) to the job, without
    waiting. may_write: False under backpressure. rest_seconds: the shortest interval. allowance: characters
    of partial output."""

    def __init__(
        self,
        write: Write,
        clock: Clock,
        *,
        rest_seconds: float,
        may_write: Callable[[], bool],
        allowance: int = MAX_OUTPUT_CHARS,
    ) -> None:
        self._write, self._clock, self._may_write = write, clock, may_write
        self._rest = rest_seconds
        self.allowance = allowance
        self._lock = threading.Lock()
        self._began = self._written_at = clock.monotonic()
        self._pieces: list[Any] = []
        self._chars = self._written_chars = self._left_out = self._part = 0
        self._progress: float | None = None
        self._progress_written = -math.inf

    def add(self, kind: str, value: Any) -> None:
        """From any thread. kind: ``progress`` (0..1) or ``partial`` (any JSON value); others are ignored."""
        try:
            with self._lock:
                if kind == "progress":
                    self._progress = float(value)
                elif kind == "partial":
                    self._add_output(value)
                self._write_if_due()
        except Exception as error:  # bad progress must not fail the run
            log.warning("progress_not_taken", kind=kind, error=str(error))

    def write_if_due(self) -> None:
        """Write what is buffered and due; called periodically, since no further progress may come."""
        with self._lock:
            self._write_if_due()

    def end(self) -> None:
        """Write the rest, if anything was written before."""
        with self._lock:
            if self._part:
                self._write_all()

    def _add_output(self, value: Any) -> None:
        try:
            check_storable(value)
            size = len(json.dumps(value, allow_nan=False))
        except (Unreadable, TypeError, ValueError):
            size = MAX_OUTPUT_CHARS
        if self._chars + size > MAX_EVENT_CHARS or self._written_chars + size > self.allowance:
            self._left_out += 1
            return
        self._chars += size
        self._written_chars += size
        if self._pieces:
            joined = _joined(self._pieces[-1], value)
            if joined is not None:
                self._pieces[-1] = joined
                return
        self._pieces.append(value)

    def _write_if_due(self) -> None:
        now = self._clock.monotonic()
        pause = max(self._rest, (now - self._began) / GROWING_PAUSES)
        if now - self._written_at >= pause and self._may_write():
            self._write_all()

    def _write_all(self) -> None:
        if self._pieces or self._left_out:
            self._part += 1
            data: dict[str, Any] = {"part": self._part, "output": self._pieces}
            if self._left_out:
                data["left_out"] = self._left_out
            self._pieces, self._chars, self._left_out = [], 0, 0
            self._write_event("partial", data)
        if self._progress is not None and abs(self._progress - self._progress_written) >= LEAST_PROGRESS:
            self._part += 1
            self._progress_written = self._progress
            self._write_event("progress", {"part": self._part, "progress": round(self._progress, 4)})

    def _write_event(self, kind: str, data: Mapping[str, Any]) -> None:
        self._written_at = self._clock.monotonic()
        self._write(kind, data)


def _joined(before: Any, value: Any) -> Any:
    """Join two consecutive texts, also where both are the single value of the same name. None: not
    joinable."""
    if isinstance(before, str) and isinstance(value, str):
        return before + value
    if (
        isinstance(before, dict)
        and isinstance(value, dict)
        and list(before) == list(value)
        and len(value) == 1
    ):
        (name,) = value
        if isinstance(before[name], str) and isinstance(value[name], str):
            return {name: before[name] + value[name]}
    return None


@dataclass(frozen=True, slots=True)
class Admitted:
    """max_bytes: of the body. is_repeated: the attempt's final push is stored; the body need not be read.
    is_over: the attempt's holder has ended it."""

    max_bytes: int
    is_repeated: bool = False
    is_over: bool = False


def admit_push(job_id: str, attempt_id: str, ports: Ports) -> Admitted | None:
    """None: there is no such job, or the attempt is another job's. Raises AttemptOver, TooManyPushes."""
    job, attempt = _job.first(id=job_id), _attempt.first(id=attempt_id)
    if job is None or (attempt is not None and attempt["job_id"] != job_id):
        return None
    spec = ports.registry.model_spec(job["model"]) or ModelSpec(job["model"], job["model"])
    max_bytes = min(spec.max_response_bytes, settings.DISPATCHER.max_push_bytes)
    pushed = _pushed.first(attempt_id=attempt_id)
    is_over = _is_over(job, attempt, attempt_id, spec, ports.clock.now())
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
