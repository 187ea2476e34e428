"""A job as text: where it is, one lane per attempt, its events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from admin_ui.pages.job_timeline import Lane, Timeline, timeline
from dispatcher_project.cli.paint import Paint, age, fitted, plain, table
from foundation.texts import counted
from jobs import ports as wiring
from jobs.api.explain import explanation_json
from jobs.api.representations import job_json
from jobs.domain.states import JobState
from jobs.models import Attempt, Event, Job
from jobs.operations.explain_job import explain_job
from jobs.transitions import WAITING

MOST_LANES, MOST_EVENTS, MOST_REASONS = 20, 200, 3
_LANE = 40
_BARS = {"queued": ("·", "dim"), "pause": ("-", "yellow"), "sent": ("█", "green"), "polling": ("▓", "cyan")}
STATE_COLOURS = {
    "queued": "blue", "running": "green", "retrying": "yellow", "cancelling": "yellow", "completed": "green",
    "failed": "red", "cancelled": "dim", "scheduled": "dim",
}  # fmt: skip


def job_document(job: Job) -> dict[str, Any]:
    """As clients read it, with its events and, while it waits, why."""
    why = {"why": explanation_json(explain_job(job, wiring.production_ports()))} if is_waiting(job) else {}
    return (
        job_json(job, in_full=True)
        | why
        | {"events": [event_document(event) for event in latest_events(job.id)]}
    )


def event_document(event: Event) -> dict[str, Any]:
    return {"seq": event.seq, "at": event.at, "type": event.type, "data": event.data}


def latest_events(job_id: str, after: int = 0) -> list[Event]:
    """At most MOST_EVENTS, in their order."""
    rows = Event.objects.filter(job_id=job_id, seq__gt=after).order_by("-seq")
    return list(rows[:MOST_EVENTS])[::-1]


def job_lines(job: Job, *, now: datetime, paint: Paint, columns: int) -> list[str]:
    attempts = list(Attempt.objects.filter(job_id=job.id).order_by("-number")[:MOST_LANES])[::-1]
    events = latest_events(job.id)
    lines = [*_head(job, now, paint), *why_lines(job, paint), ""]
    course = timeline(attempts, events, now=now)
    if course.lanes:
        lines += [*_lanes(course, paint), ""]
    lines += event_lines(events, paint)
    return [fitted(line, columns) for line in lines]


def event_lines(events: Sequence[Event], paint: Paint, before: datetime | None = None) -> list[str]:
    """before: when the event before the first one was."""
    lines = []
    for event in events:
        since = f"+{age((event.at - before).total_seconds())}" if before else ""
        told = " ".join(f"{key}={plain(value, 200)}" for key, value in sorted(event.data.items()))
        lines.append(f"{paint(f'{event.at:%H:%M:%S.%f}'[:-3], 'dim')}  {since:>10}  {event.type:<12} {told}")
        before = event.at
    return lines


def is_waiting(job: Job) -> bool:
    return job.state in WAITING


def why_lines(job: Job, paint: Paint) -> list[str]:
    """Why it waits, most binding reason first; nothing for a job that does not wait."""
    if not is_waiting(job):
        return []
    found = explain_job(job, wiring.production_ports())
    lines = [
        f"{paint(reason.code, 'yellow')}: {reason.message} {paint(reason.change, 'dim')}"
        for reason in found.reasons[:MOST_REASONS]
    ]
    if found.starts is not None:
        lines.append(
            f"starts in about {age(found.starts.p50_seconds)}, nine in ten such jobs within "
            f"{age(found.starts.p90_seconds)}"
        )
    return lines


def _head(job: Job, now: datetime, paint: Paint) -> list[str]:
    waited, ran = _waited_and_ran(job, now)
    state = paint(job.state, STATE_COLOURS.get(job.state, "bold"), "bold")
    lines = [
        f"{paint(job.id, 'bold')}  {state}  {job.model}  of {job.tenant.name}  priority {job.priority}",
        f"accepted {job.created_at:%Y-%m-%d %H:%M:%S} UTC, "
        + (f"round {job.round}: " if job.round > 1 else "")
        + f"waited {age(waited)}"
        + (f", ran {age(ran)}" if job.started_at else "")
        + (f", {counted(job.tries, 'try', 'tries')} used" if job.tries else ""),
    ]
    if job.error_code:
        lines.append(paint(f"{job.error_code}: {plain(job.error_message, 400)}", "red"))
    if job.cancel_requested_at and not job.finished_at:
        lines.append(paint("cancel is asked for: it ends once its GPU is proven free", "yellow"))
    return lines


def _waited_and_ran(job: Job, now: datetime) -> tuple[float, float]:
    """Seconds of its round. All that is no run is a wait: the pauses between two tries too."""
    retried_at = datetime.fromtimestamp(job.place_us / 1e6, UTC)  # a new round's place in the line
    begin = retried_at if job.round > 1 else job.created_at
    runs = list(job.attempts.filter(round=job.round).values_list("started_at", "finished_at"))
    ran = sum(((finished_at or now) - started_at).total_seconds() for started_at, finished_at in runs)
    over = job.finished_at or now
    if job.state == JobState.CANCELLING:  # it neither waits nor runs
        over = max((finished_at or now for _, finished_at in runs), default=now)
    return max(0.0, (over - begin).total_seconds() - ran), ran


def _lanes(course: Timeline, paint: Paint) -> list[str]:
    rows = [_row(lane, paint) for lane in course.lanes]
    scale = "waiting at a smaller scale" if course.is_squeezed else ""
    legend = "  ".join(f"{paint(mark, style)} {name}" for name, (mark, style) in _BARS.items())
    return [*table(("try", "slot", "", "took", "ended"), rows, paint), f"{legend}  {scale}".rstrip()]


def _row(lane: Lane, paint: Paint) -> tuple[str, ...]:
    attempt = lane.attempt
    track = [" "] * _LANE
    for bar in lane.bars:
        mark, style = _BARS[bar.kind]
        first = min(int(bar.left / 100 * _LANE), _LANE - 1)
        last = max(first + 1, round((bar.left + bar.width) / 100 * _LANE))
        for place in range(first, min(last, _LANE)):
            track[place] = paint(mark, style)
    took = age(sum(bar.seconds for bar in lane.bars if bar.kind in ("sent", "polling")) if attempt else None)
    if attempt is None:
        return "", "", "".join(track), took, ""
    ended = "" if lane.is_live else attempt.error_code or attempt.state
    why = f" {plain(attempt.error_message, 100)}" if attempt.error_message else ""
    return str(attempt.number), f"{attempt.server}/{attempt.slot}", "".join(track), took, f"{ended}{why}"
