from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

from admin_ui.pages.job_timeline import Lane, Timeline, timeline
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import age, line, plain, table
from dispatcher_project.cli.tracebacks import split_message, without_own_frames
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
MOST_ATTEMPTS, MOST_EVENTS, MOST_REASONS = 200, 200, 3
FOLDED = 3
"""Attempts in a row from which equal ones are folded."""
_LANE = 40
_BARS = {"queued": ("·", "dim"), "pause": ("-", "yellow"), "sent": ("█", "green"), "polling": ("▓", "cyan")}
STATE_COLOURS = {
    "queued": "blue", "running": "green", "retrying": "yellow", "cancelling": "yellow", "completed": "green",
    "failed": "red", "cancelled": "dim", "scheduled": "dim",
}  # fmt: skip


class Command(TerminalCommand):
    help = (
        "Show a job: state, attempts, events and, while it waits, why. Equal attempts in a row are folded; "
        "--traceback prints where the model's code failed."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Let `--traceback` be this command's: Django's shows a command's own failure."""
        parser = super().create_parser(prog_name, subcommand, conflict_handler="resolve", **kwargs)
        parser.set_defaults(traceback=False)
        return parser

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", metavar="ID", help="job id, as the submit returned it")
        parser.add_argument(
            "--traceback",
            dest="show_traceback",
            action="store_true",
            help="print only the latest traceback, without the dispatcher's own frames",
        )
        parser.add_argument("--follow", action="store_true", help="show new events until the job ends")

    def act(self, options: dict[str, Any]) -> int | None:
        job = _find(options["id"].strip().upper())
        if options["show_traceback"]:
            self._show_traceback(job)
            return None
        if self.as_json:
            self.print_json(job_document(job))
        else:
            self.show(*job_parts(job, now=ports.production_ports().clock.now()))
        if options["follow"]:
            self._follow(job)
        return None

    def _show_traceback(self, job: Job) -> None:
        found = latest_traceback(job)
        if found is None:
            raise CommandError(f"no attempt of job {job.id} has a traceback")
        attempt, trace = found
        message, _ = split_message(attempt.error_message)
        document = {
            "job_id": job.id,
            "attempt": attempt.number,
            "error": {"code": attempt.error_code, "message": message},
            "traceback": trace,
        }
        head = f"attempt {attempt.number} on {attempt.server}/{attempt.slot}: {attempt.error_code}"
        self.report(document, head, trace.rstrip("\n"))

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


def latest_traceback(job: Job) -> tuple[Attempt, str] | None:
    """The latest attempt with a traceback, and that without the dispatcher's own frames."""
    rows = Attempt.objects.filter(job_id=job.id, error_message__contains="\n\n")
    attempt = rows.order_by("-number").first()
    if attempt is None:
        return None
    return attempt, without_own_frames(split_message(attempt.error_message)[1])


def job_parts(job: Job, *, now: datetime) -> list[RenderableType]:
    attempts = list(Attempt.objects.filter(job_id=job.id).order_by("-number")[:MOST_ATTEMPTS])[::-1]
    events = latest_events(job.id)
    shown_timeline = timeline(attempts, events, now=now)
    lanes: list[RenderableType] = (
        [_lanes(shown_timeline), _legend(shown_timeline), ""] if shown_timeline.lanes else []
    )
    shown_events = event_lines_folded(events, _folded_numbers(shown_timeline.lanes))
    return [*_head(job, now), *why_lines(job), "", *lanes, *shown_events]


def event_lines_folded(events: Sequence[Event], folded: Collection[int]) -> list[Text]:
    """One line per event, and one for all events in a row of folded attempts. folded: their numbers."""
    lines: list[Text] = []
    current, left_out, before = 0, 0, None
    for event in events:
        current = int(event.data.get("attempt", current))
        if current in folded:
            left_out += 1
        else:
            lines += [*_left_out(left_out), *event_lines([event], before)]
            left_out = 0
        before = event.at
    return [*lines, *_left_out(left_out)]


def _left_out(count: int) -> list[Text]:
    return [line((f"… {counted(count, 'event')} of equal attempts", "dim"))] if count else []


def _folded_numbers(lanes: Sequence[Lane]) -> frozenset[int]:
    """The attempts of folded lanes but the last of each row, after which the job went on."""
    groups = [group[1:-1] for group in fold(lanes) if len(group) >= FOLDED]
    return frozenset(lane.attempt.number for group in groups for lane in group if lane.attempt)


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
    rows: list[tuple[str | Text, ...]] = []
    for group in fold(shown.lanes):
        rows.append(_row(group[0]))
        if len(group) >= FOLDED:
            rows.append(_folded_row(group[1:]))
        else:
            rows += [_row(lane) for lane in group[1:]]
    return table(heads, rows, gives_way=("ended",))


def fold(lanes: Sequence[Lane]) -> list[list[Lane]]:
    """Group lanes in a row whose attempts ended with the same state, error and message."""
    return [list(group) for _, group in groupby(lanes, key=_ending)]


def _ending(lane: Lane) -> tuple[object, ...]:
    attempt = lane.attempt
    if attempt is None or lane.is_live:
        return (id(lane),)
    message, _ = split_message(attempt.error_message)
    return attempt.state, attempt.error_code, message


def _folded_row(lanes: Sequence[Lane]) -> tuple[str | Text, ...]:
    """Several lanes in one row: the slot if it is the same, and the longest run."""
    attempts = [lane.attempt for lane in lanes if lane.attempt is not None]
    slots = {f"{attempt.server}/{attempt.slot}" for attempt in attempts}
    where = slots.pop() if len(slots) == 1 else counted(len(slots), "slot")
    longest = max(_run_seconds(lane) for lane in lanes)
    numbers = f"{attempts[0].number}–{attempts[-1].number}"
    return numbers, where, _track(lanes), f"≤ {age(longest)}", f"the same, {len(lanes)} times"


def _legend(shown: Timeline) -> Text:
    marks = [part for name, mark in _BARS.items() for part in (mark, f" {name}  ")]
    return line(*marks, "waits are drawn at a smaller scale" if shown.is_squeezed else "")


def _row(lane: Lane) -> tuple[str | Text, ...]:
    attempt, track = lane.attempt, _track([lane])
    if attempt is None:
        return "", "", track, age(None), ""
    ended = "" if lane.is_live else attempt.error_code or attempt.state
    message, _ = split_message(attempt.error_message)
    slot = f"{attempt.server}/{attempt.slot}"
    return str(attempt.number), slot, track, age(_run_seconds(lane)), f"{ended} {message}".rstrip()


def _track(lanes: Sequence[Lane]) -> Text:
    track: list[str | tuple[str, str]] = [" "] * _LANE
    for bar in (bar for lane in lanes for bar in lane.bars):
        first = min(int(bar.left / 100 * _LANE), _LANE - 1)
        last = max(first + 1, round((bar.left + bar.width) / 100 * _LANE))
        for place in range(first, min(last, _LANE)):
            track[place] = _BARS[bar.kind]
    return line(*track)


def _run_seconds(lane: Lane) -> float:
    return sum(bar.seconds for bar in lane.bars if bar.kind in ("sent", "polling"))
