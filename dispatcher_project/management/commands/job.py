from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

from admin_ui.pages.job_folds import EventRow, LaneRow, fold_events, fold_lanes
from admin_ui.pages.job_timeline import Lane, Timeline, timeline
from artifacts.refs import only_ref
from artifacts.store.contract import StoreError
from artifacts.uses import is_result_of
from dispatcher_client.artifacts import ids_in
from dispatcher_client.file_names import free_names
from dispatcher_client.partial_file import PartialFile
from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.screen import age, field_text, line, plain, table
from dispatcher_project.management.commands.artifacts import artifact_row, save_artifact
from foundation.texts import counted
from gpus.registry.audit import cli_actor
from jobs import ports
from jobs.api.jobs import explanation_json
from jobs.api.representations import job_json, nodes_of_jobs, run_id_of
from jobs.domain.states import JobState, is_final
from jobs.domain.tracebacks import split_message, traceback_in
from jobs.events.log_lines import LOG_EVENT, START, LogChoice, StoredLine, read_last_lines, read_lines
from jobs.models import Attempt, Event, Job
from jobs.operations.erase import erase_job_data
from jobs.operations.explain_job import explain_job
from jobs.reports.progress import progress_of
from jobs.transitions import WAITING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

FAILED = 1
"""Exit status of `result` for a job that failed or was cancelled."""
LOOK_SECONDS = 0.5
MAX_ATTEMPTS, MAX_EVENTS, MAX_REASONS = 200, 200, 3
_NO_LINES = (
    "no log lines. Model code on a node or a pinned worker is logged by itself; an HTTP server of your own "
    "sends `logs` in its answers (docs/reference/gpu_protocol.md), and its prints stay in its own output"
)
_LANE = 40
_BARS = {"queued": ("·", "dim"), "pause": ("-", "yellow"), "sent": ("█", "green"), "polling": ("▓", "cyan")}
_MEANINGS = {"queued": "queued", "pause": "delayed", "sent": "running", "polling": "running, polled"}
STATE_COLOURS = {
    "queued": "blue", "running": "green", "retrying": "yellow", "cancelling": "yellow", "completed": "green",
    "failed": "red", "cancelled": "dim", "scheduled": "dim",
}  # fmt: skip


class Command(TerminalCommand):
    help = (
        "Show a job: state, attempts, events and, while it waits, why. Equal attempts in a row are folded; "
        "--traceback prints where the model's code failed, `logs ID` what it printed and logged, `result ID` "
        "its result, `erase ID` erases what it was given and made."
    )

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        """Let `--traceback` be this command's: Django's shows a command's own failure."""
        parser = super().create_parser(prog_name, subcommand, conflict_handler="resolve", **kwargs)
        parser.set_defaults(traceback=False)
        return parser

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "id",
            metavar="[logs|result|erase] ID",
            nargs="+",
            help="id of the job; after the word `logs`: show its log; `result`: print its result; `erase`: "
            "erase its data",
        )
        parser.add_argument(
            "--traceback",
            dest="show_traceback",
            action="store_true",
            help="print only the latest traceback, without the dispatcher's own frames",
        )
        parser.add_argument(
            "--follow", action="store_true", help="show new events, or log lines, until the job ends"
        )
        parser.add_argument(
            "--download", type=Path, metavar="DIR", help="with `result`: also save the files that it names"
        )
        self.add_yes(parser)
        parser.add_argument("--tail", type=positive, metavar="N", help="with `logs`: only the last N lines")

    def act(self, options: dict[str, Any]) -> int | None:
        words: list[str] = options["id"]
        verb = words[0] if len(words) == 2 else ""
        if len(words) > 1 and verb not in ("logs", "result", "erase"):
            raise CommandError("give one job id, or `logs`, `result` or `erase` and one job id")
        job = _find(words[-1].strip().upper())
        if options["download"] is not None and verb != "result":
            raise CommandError("--download is for `job result ID`")
        if verb == "result":
            return self._show_result(job, options["download"])
        if verb == "erase":
            self._erase(job, options)
            return None
        if verb == "logs":
            self._show_logs(job, options)
            return None
        if options["tail"]:
            raise CommandError("--tail is for `job logs ID`")
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

    def _show_result(self, job: Job, folder: Path | None) -> int | None:
        """Print the result, also a long one, which is in an artifact; save its files."""
        if job.state != JobState.COMPLETED:
            if not is_final(JobState(job.state)):
                raise CommandError(f"job {job.id} is {job.state}: it has no result yet")
            text = f"{job.state} {job.error_code} {plain(job.error_message)}".rstrip()
            self.report({"job_id": job.id, "status": job.state, "error_code": job.error_code}, text)
            return FAILED
        real = ports.production_ports()
        try:
            result = read_whole_result(job, real)
            self.print(json.dumps(result, ensure_ascii=False, indent=None if self.as_json else 2))
            for path in save_files(result, folder, real) if folder is not None else ():
                self.stderr.write(f"saved {plain(str(path), 300)}")
        except (StoreError, OSError) as error:
            raise CommandError(plain(error, 300)) from None
        return None

    def _erase(self, job: Job, options: dict[str, Any]) -> None:
        self.confirm(f"Erase payload, result, log and files of job {job.id}?", options)
        real = ports.production_ports()
        artifacts = erase_job_data(job.id, ports=real, by=cli_actor())
        document = {"job_id": job.id, "erased_at": real.clock.now(), "artifacts": artifacts}
        files = f", with {counted(artifacts, 'artifact')}" if artifacts else ""
        self.report(document, f"{job.id}: its data is erased{files}")

    def _show_logs(self, job: Job, options: dict[str, Any]) -> None:
        """Print the job's log lines; with --follow until it has ended."""
        if options["show_traceback"]:
            raise CommandError("--traceback is for `job ID`: the log ends with the traceback")
        choice = LogChoice()
        while True:
            over = is_final(JobState(job.state))  # read before the lines: the last are among them
            tail = options["tail"] if choice.after == START else None
            lines = read_last_lines(job.id, choice, tail) if tail else list(read_lines(job.id, choice))
            for found in lines:
                if self.as_json:
                    self.print_json(found.as_json())
                else:
                    self.show(log_line(found))
            if lines:
                choice = replace(choice, after=lines[-1].id)
            if over or not options["follow"]:
                if choice.after == START and not self.as_json:
                    self.stderr.write(_NO_LINES)
                return
            time.sleep(LOOK_SECONDS)
            job = _find(job.id)

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


def read_whole_result(job: Job, real: ports.Ports) -> Any:
    """Return a job's result; of a long one the JSON in its artifact. Raises CommandError, StoreError."""
    artifact_id = only_ref(job.result)
    if artifact_id is None or not is_result_of(job.id, artifact_id):
        return job.result
    row = artifact_row(artifact_id)
    return json.loads(b"".join(real.artifact_store.chunks(row.key)))


def save_files(result: Any, folder: Path, real: ports.Ports) -> list[Path]:
    """Save the files that a result refers to, in place of no other file; return their paths. Raises
    CommandError, StoreError, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    saved: list[Path] = []
    for artifact_id in ids_in(result):
        row = artifact_row(artifact_id)
        names = free_names(row.name, row.pk, [path.name for path in saved])
        saved.append(save_artifact(row, folder, partial(PartialFile.publish, names=names), real))
    return saved


def log_line(found: StoredLine) -> Text:
    """A log line for the terminal; standard error in red."""
    kind = f"{found.stream}/{found.level}" if found.level else found.stream
    colour = {"error": "red", "warning": "yellow"}.get(found.level, "red" if found.stream == "stderr" else "")
    at = found.at[11:23]
    return line((f"{at} #{found.attempt} {kind:<6} ", "dim"), (found.text, colour), wraps=True)


def job_document(job: Job) -> dict[str, Any]:
    """The document that clients get, with the events and, while the job waits, the reasons."""
    why = {"why": explanation_json(explain_job(job, ports.production_ports()))} if is_waiting(job) else {}
    real = ports.production_ports()
    node = nodes_of_jobs([job], real).get(job.id)
    return (
        job_json(job, real.clock.now(), node=node, in_full=True)
        | why
        | {"events": [event_document(event) for event in latest_events(job.id)]}
    )


def event_document(event: Event) -> dict[str, Any]:
    return {"seq": event.seq, "at": event.at, "type": event.type, "data": event.data}


def latest_events(job_id: str, after: int = 0) -> list[Event]:
    """The latest events in order, MAX_EVENTS at most, without log lines."""
    rows = Event.objects.filter(job_id=job_id, seq__gt=after).exclude(type=LOG_EVENT).order_by("-seq")
    return list(rows[:MAX_EVENTS])[::-1]


def latest_traceback(job: Job) -> tuple[Attempt, str] | None:
    """The latest attempt with a traceback, and that without the dispatcher's own frames."""
    rows = Attempt.objects.filter(job_id=job.id, error_message__contains="\n\n")
    attempt = rows.order_by("-number").first()
    if attempt is None:
        return None
    found = traceback_in(attempt.error_message)
    return (attempt, found.shown) if found else None


def job_parts(job: Job, *, now: datetime) -> list[RenderableType]:
    attempts = list(Attempt.objects.filter(job_id=job.id).order_by("-number")[:MAX_ATTEMPTS])[::-1]
    events = latest_events(job.id)
    shown_timeline = timeline(attempts, events, now=now)
    lanes: list[RenderableType] = (
        [_lanes(shown_timeline), _legend(shown_timeline), ""] if shown_timeline.lanes else []
    )
    shown_events = [text for row in fold_events(events, shown_timeline.lanes) for text in _event_row(row)]
    return [*_head(job, attempts, now), *why_lines(job), "", *lanes, *shown_events]


def _event_row(row: EventRow) -> list[Text]:
    if row.is_folded:
        return [line((f"… equal attempts: {row.label}", "dim"))]
    return event_lines(row.events, row.before.at if row.before else None)


def event_lines(events: Sequence[Event], before: datetime | None = None) -> list[Text]:
    """One line per event. before: time of the event before the first one."""
    lines = []
    for event in events:
        since = f"+{age((event.at - before).total_seconds())}" if before else ""
        data = " ".join(f"{key}={field_text(value)}" for key, value in sorted(event.data.items()))
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
        for reason in found.reasons[:MAX_REASONS]
    ]
    if found.starts is not None:
        half, most = age(found.starts.p50_seconds), age(found.starts.p90_seconds)
        lines.append(
            line(f"starts in about {half}; nine out of ten such jobs start within {most}", wraps=True)
        )
    return lines


def running_text(job: Job) -> str:
    """The state of a job; while it runs and reports progress with the percent: ``running 62 %``."""
    found = progress_of(job)
    return f"{job.state} {found.value:.0%}".replace("%", " %") if found else str(job.state)


def _head(job: Job, attempts: Sequence[Attempt], now: datetime) -> list[Text]:
    timings, progress = job.timings(attempts, now), progress_of(job)
    in_all = f", {age(timings.gpu)} in all attempts" if len(attempts) > 1 else ""
    facts = (
        f"accepted {job.created_at:%Y-%m-%d %H:%M:%S} UTC, "
        + (f"round {job.round}, " if job.round > 1 else "")
        + f"waited {age(timings.waited)}"
        + (f", {'last run' if in_all else 'ran'} {age(timings.ran)}{in_all}" if attempts else "")
        + (f", total {age(timings.total)}" if job.finished_at else f", {age(timings.total)} since the submit")
        + (f", {counted(job.tries, 'try', 'tries')} used" if job.tries else "")
    )
    lines = [
        line(
            (job.id, "bold"),
            "  ",
            (running_text(job), f"bold {STATE_COLOURS.get(job.state, '')}"),
            f"  {progress.text}" if progress and progress.text else "",
            f"  {job.model}  of {job.tenant.name}  priority {job.priority}",
            wraps=True,
        ),
        line(facts, wraps=True),
    ]
    if run_id := run_id_of(job):
        node = nodes_of_jobs([job], ports.production_ports()).get(job.id)
        lines.append(line(f"node {node or '?'} of the run {run_id}", wraps=True))
    if job.error_code:
        lines.append(line((f"{job.error_code}: {plain(job.error_message)}", "red"), wraps=True))
    if job.cancel_requested_at and not job.finished_at:
        text = "cancel requested: the job ends once its GPU is proven free"
        lines.append(line((text, "yellow"), wraps=True))
    return lines


def _lanes(shown: Timeline) -> Table:
    heads = ("try", "slot", "", "took", "ended")
    rows = [_folded_row(row) if row.is_folded else _row(row.lanes[0]) for row in fold_lanes(shown.lanes)]
    return table(heads, rows, gives_way=("ended",))


def _folded_row(row: LaneRow) -> tuple[str | Text, ...]:
    return row.numbers, row.slots, _track(row.lanes), f"≤ {age(row.longest_run_seconds)}", row.same


def _legend(shown: Timeline) -> Text:
    marks = [part for kind, mark in _BARS.items() for part in (mark, f" {_MEANINGS[kind]}  ")]
    return line(*marks, "not to scale" if shown.is_squeezed else "")


def _row(lane: Lane) -> tuple[str | Text, ...]:
    attempt, track = lane.attempt, _track([lane])
    if attempt is None:
        return "", "", track, age(None), ""
    ended = "" if lane.is_live else attempt.error_code or attempt.state
    message, _ = split_message(attempt.error_message)
    slot = f"{attempt.server}/{attempt.slot}"
    return str(attempt.number), slot, track, age(lane.run_seconds), f"{ended} {message}".rstrip()


def _track(lanes: Sequence[Lane]) -> Text:
    track: list[str | tuple[str, str]] = [" "] * _LANE
    for bar in (bar for lane in lanes for bar in lane.bars):
        first = min(int(bar.left / 100 * _LANE), _LANE - 1)
        last = max(first + 1, round((bar.left + bar.width) / 100 * _LANE))
        for place in range(first, min(last, _LANE)):
            track[place] = _BARS[bar.kind]
    return line(*track)
