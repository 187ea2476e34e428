from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

from admin_ui.pages.job_timeline import Lane, Timeline, timeline
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import age, line, plain, table
from foundation.texts import counted
from jobs import ports
from jobs.api.jobs import explanation_json
from jobs.api.representations import job_json
from jobs.domain.states import JobState, is_final
from jobs.models import Attempt, Event, Job
from jobs.operations.explain_job import explain_job
from jobs.transitions import WAITING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

LOOK_SECONDS = 0.5
MOST_LANES, MOST_EVENTS, MOST_REASONS = 20, 200, 3
_LANE = 40
_BARS = {"queued": ("·", "dim"), "pause": ("-", "yellow"), "sent": ("█", "green"), "polling": ("▓", "cyan")}
STATE_COLOURS = {
    "queued": "blue", "running": "green", "retrying": "yellow", "cancelling": "yellow", "completed": "green",
    "failed": "red", "cancelled": "dim", "scheduled": "dim",
}  # fmt: skip


class Command(TerminalCommand):
    help = "Show a job: state, attempts, events and, while it waits, why."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", metavar="ID", help="job id, as the submit returned it")
        parser.add_argument("--follow", action="store_true", help="show new events until the job ends")

    def act(self, options: dict[str, Any]) -> int | None:
        job = _find(options["id"].strip().upper())
        if self.as_json:
            self.print_json(job_document(job))
        else:
            self.show(*job_parts(job, now=ports.production_ports().clock.now()))
        if options["follow"]:
            self._follow(job)
        return None

    def _follow(self, job: Job) -> None:
        """Print new events as they are committed; with --json one document each, and the job at the end."""
        last = Event.objects.filter(job=job).order_by("-seq").first()
        over = is_final(JobState(job.state))
        while not over:
            time.sleep(LOOK_SECONDS)
            job = _find(job.id)
            over = is_final(JobState(job.state))  # read before the events, so that the last one is among them
            for event in latest_events(job.id, after=last.seq if last else 0):
                if self.as_json:
                    self.print_json(event_document(event))
                else:
                    self.show(*event_lines([event], last.at if last else None))
                last = event
        if self.as_json:
            self.print_json(job_document(job))
        elif job.error_code:
            self.print(f"{job.state}: {job.error_code}")


def _find(job_id: str) -> Job:
    """A job with its tenant, without its payload. Raises CommandError."""
    rows = Job.objects.select_related("tenant").defer("payload")
    job = rows.filter(id=job_id).first()
    if job is None:
        raise CommandError(
            f"there is no job {job_id}: it was never submitted here, or removed after its retention time"
        )
    return job


def job_document(job: Job) -> dict[str, Any]:
    """The document that clients get, with the events and, while the job waits, the reasons."""
    why = {"why": explanation_json(explain_job(job, ports.production_ports()))} if is_waiting(job) else {}
    return (
        job_json(job, in_full=True)
        | why
        | {"events": [event_document(event) for event in latest_events(job.id)]}
    )


def event_document(event: Event) -> dict[str, Any]:
    return {"seq": event.seq, "at": event.at, "type": event.type, "data": event.data}


def latest_events(job_id: str, after: int = 0) -> list[Event]:
    """The latest events in order, MOST_EVENTS at most."""
    rows = Event.objects.filter(job_id=job_id, seq__gt=after).order_by("-seq")
    return list(rows[:MOST_EVENTS])[::-1]


def job_parts(job: Job, *, now: datetime) -> list[RenderableType]:
    attempts = list(Attempt.objects.filter(job_id=job.id).order_by("-number")[:MOST_LANES])[::-1]
    events = latest_events(job.id)
    shown_timeline = timeline(attempts, events, now=now)
    lanes: list[RenderableType] = (
        [_lanes(shown_timeline), _legend(shown_timeline), ""] if shown_timeline.lanes else []
    )
    return [*_head(job, now), *why_lines(job), "", *lanes, *event_lines(events)]


def event_lines(events: Sequence[Event], before: datetime | None = None) -> list[Text]:
    """One line per event. before: time of the event before the first one."""
    lines = []
    for event in events:
        since = f"+{age((event.at - before).total_seconds())}" if before else ""
        data = " ".join(f"{key}={plain(value)}" for key, value in sorted(event.data.items()))
        at = f"{event.at:%H:%M:%S.%f}"[:-3]
        lines.append(line((at, "dim"), f"  {since:>10}  {event.type:<12} {data}".rstrip()))
        before = event.at
    return lines


def is_waiting(job: Job) -> bool:
    return job.state in WAITING


def why_lines(job: Job) -> list[Text]:
    """The reasons why a job waits, the most binding first; empty for one that does not wait."""
    if not is_waiting(job):
        return []
    found = explain_job(job, ports.production_ports())
    lines = [
        line((reason.code, "yellow"), f": {reason.message} ", (reason.change, "dim"), wraps=True)
        for reason in found.reasons[:MOST_REASONS]
    ]
    if found.starts is not None:
        half, most = age(found.starts.p50_seconds), age(found.starts.p90_seconds)
        lines.append(
            line(f"starts in about {half}; nine out of ten such jobs start within {most}", wraps=True)
        )
    return lines


def _head(job: Job, now: datetime) -> list[Text]:
    waited, ran = _waited_and_ran(job, now)
    facts = (
        f"accepted {job.created_at:%Y-%m-%d %H:%M:%S} UTC, "
        + (f"round {job.round}: " if job.round > 1 else "")
        + f"waited {age(waited)}"
        + (f", ran {age(ran)}" if job.started_at else "")
        + (f", {counted(job.tries, 'try', 'tries')} used" if job.tries else "")
    )
    lines = [
        line(
            (job.id, "bold"),
            "  ",
            (job.state, f"bold {STATE_COLOURS.get(job.state, '')}"),
            f"  {job.model}  of {job.tenant.name}  priority {job.priority}",
            wraps=True,
        ),
        line(facts, wraps=True),
    ]
    if job.error_code:
        lines.append(line((f"{job.error_code}: {plain(job.error_message)}", "red"), wraps=True))
    if job.cancel_requested_at and not job.finished_at:
        text = "cancel requested: the job ends once its GPU is proven free"
        lines.append(line((text, "yellow"), wraps=True))
    return lines


def _waited_and_ran(job: Job, now: datetime) -> tuple[float, float]:
    """Seconds of the current round. Everything but runs counts as waiting, also pauses between tries."""
    retried_at = datetime.fromtimestamp(job.place_us / 1e6, UTC)  # a new round's queue position
    begin = retried_at if job.round > 1 else job.created_at
    runs = list(job.attempts.filter(round=job.round).values_list("started_at", "finished_at"))
    ran = sum(((finished_at or now) - started_at).total_seconds() for started_at, finished_at in runs)
    over = job.finished_at or now
    if job.state == JobState.CANCELLING:  # neither waiting nor running
        over = max((finished_at or now for _, finished_at in runs), default=now)
    return max(0.0, (over - begin).total_seconds() - ran), ran


def _lanes(shown: Timeline) -> Table:
    heads = ("try", "slot", "", "took", "ended")
    return table(heads, [_row(lane) for lane in shown.lanes], gives_way=("ended",))


def _legend(shown: Timeline) -> Text:
    marks = [part for name, mark in _BARS.items() for part in (mark, f" {name}  ")]
    return line(*marks, "waits are drawn at a smaller scale" if shown.is_squeezed else "")


def _row(lane: Lane) -> tuple[str | Text, ...]:
    attempt = lane.attempt
    track: list[str | tuple[str, str]] = [" "] * _LANE
    for bar in lane.bars:
        first = min(int(bar.left / 100 * _LANE), _LANE - 1)
        last = max(first + 1, round((bar.left + bar.width) / 100 * _LANE))
        for place in range(first, min(last, _LANE)):
            track[place] = _BARS[bar.kind]
    took = age(sum(bar.seconds for bar in lane.bars if bar.kind in ("sent", "polling")) if attempt else None)
    if attempt is None:
        return "", "", line(*track), took, ""
    ended = "" if lane.is_live else attempt.error_code or attempt.state
    why = f" {attempt.error_message}" if attempt.error_message else ""
    return str(attempt.number), f"{attempt.server}/{attempt.slot}", line(*track), took, f"{ended}{why}"
