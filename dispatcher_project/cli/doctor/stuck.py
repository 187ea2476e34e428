"""Checks for states that the sweeps should have ended (verification/laws.py forbids them, if they last).

Each reads the oldest rows only: stuck ones are old.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from dispatcher_project.cli.doctor.finding import Finding, Level, View
from dispatcher_project.cli.doctor.parts import SECRETS_REMEDY
from dispatcher_project.cli.screen import age, plain
from foundation.program import command_line
from foundation.texts import counted
from gpus.errors import LeasingUnavailable
from jobs.callbacks.deliver import waiting_for_secret
from jobs.callbacks.pick import delivery_report, open_circuits
from jobs.domain.states import JobState
from jobs.models import ACTIONABLE, Attempt, Job

MAX_READ = 500
OVERDUE = timedelta(minutes=1)
LONG_CANCEL = timedelta(minutes=10)
_NAMED = 3


def leaseless(view: View) -> Iterator[Finding]:
    """Jobs RUNNING for more than three lease times without a lease."""
    patience = timedelta(seconds=3 * settings.DISPATCHER.lease_seconds)
    running = Job.objects.filter(state=JobState.RUNNING.value, started_at__lt=view.now - patience)
    live = set(
        Attempt.objects.filter(state__in=Attempt.LIVE, started_at__lt=view.now - patience)
        .order_by("started_at")
        .values_list("id", flat=True)[:MAX_READ]
    )
    jobs = [job for job in _oldest(running) if job.live_attempt in live]
    yield from _finding(
        _without_ticket(jobs, view),
        "running jobs",
        "have been running for long and hold no lease",
        "No worker drives them; the sweep `orphans` ends or adopts such jobs within a minute.",
        "if they stay, check beat and the sweeps above, and the log of the sweeps worker",
    )


def unreachable(view: View) -> Iterator[Finding]:
    """Jobs QUEUED for longer than two runs of the reconciler, and not in the queue in Redis."""
    before = view.now - timedelta(seconds=2 * settings.DISPATCHER.reconcile_seconds + 10)
    queued = Job.objects.filter(state=JobState.QUEUED.value, place_us__lt=int(before.timestamp() * 1_000_000))
    yield from _finding(
        _without_ticket(_oldest(queued), view),
        "waiting jobs",
        "wait and have no ticket in the queue",
        "No worker can find them; the sweep `reconcile` pushes missing tickets.",
        "if they stay, check beat and the sweeps above, and the log of the sweeps worker",
    )


def overdue(view: View) -> Iterator[Finding]:
    before = view.now - OVERDUE
    retrying = Job.objects.filter(state=JobState.RETRYING.value, due_at__lt=before)
    yield from _finding(
        _ids(retrying),
        "retries",
        "are due and were not put back into the queue",
        "The sweep `due_retries` does that every second.",
        "check beat and the sweeps above",
    )
    scheduled = Job.objects.filter(state=JobState.SCHEDULED.value, run_at__lt=before)
    yield from _finding(
        _ids(scheduled),
        "later starts",
        "are past their run_at and not in the queue",
        "The sweep `due_starts` puts them there every second.",
        "check beat and the sweeps above",
    )
    late = Job.objects.filter(deadline_at__lt=before, finished_at=None).exclude(
        state__in=[JobState.RUNNING.value, JobState.CANCELLING.value]
    )
    yield from _finding(
        _ids(late),
        "deadlines",
        "have passed, and the jobs still wait",
        "The sweep `deadlines` fails them every second.",
        "check beat and the sweeps above",
    )
    cancelled = Job.objects.filter(
        state=JobState.RUNNING.value, cancel_requested_at__lt=view.now - LONG_CANCEL
    )
    yield from _finding(
        _ids(cancelled),
        "cancels",
        "were requested long ago, and the jobs still run",
        "Their GPU does not stop, or has no way to be stopped; they end with the run at the latest.",
        "give the model a cancel_endpoint_template, or restart its server",
        level=Level.WARNING,
    )
    cancelling = Job.objects.filter(
        state=JobState.CANCELLING.value, cancel_requested_at__lt=view.now - LONG_CANCEL
    )
    yield from _finding(
        _ids(cancelling),
        "cancelling jobs",
        "were cancelled long ago, and their GPU is not proven free",
        "Their slots are in quarantine until the GPU server restarts or the model's run limit passes.",
        f"see the quarantined slots above; `{command_line('free SERVER/SLOT')}` if nothing runs there",
        level=Level.WARNING,
    )


def callbacks(view: View) -> Iterator[Finding]:
    report = delivery_report(view.now)
    figures = f"{report.in_flight} in flight, {report.due} due, {report.held} held by open circuits"
    if report.oldest_due_seconds > OVERDUE.total_seconds():
        yield Finding(
            Level.ERROR,
            "callbacks",
            f"the oldest one has been due for {age(report.oldest_due_seconds)} ({figures})",
            "Clients do not learn that their jobs have ended.",
            f"check that `{command_line('queue_worker --queues callbacks')}` runs and keeps up",
        )
    if waiting := waiting_for_secret(view.now):
        named = ", ".join(plain(name, 80) for name in waiting[:_NAMED])
        yield Finding(
            Level.ERROR,
            "callback secrets",
            f"a callbacks worker cannot decrypt secrets of {counted(len(waiting), 'tenant')} ({named})",
            "Their callbacks wait; they use up no tries.",
            SECRETS_REMEDY,
        )
    circuits = open_circuits().order_by("-failed_at").select_related("tenant")
    for one in circuits[:_NAMED]:
        yield Finding(
            Level.WARNING,
            f"callbacks to {plain(one.receiver, 80)} of {plain(one.tenant.name)}",
            f"no answer {one.failures} times, circuit open ({plain(one.last_error, 80)}; {figures})",
            "One message at a time is tried; the others stay due. Other receivers are not affected.",
            "inform the tenant; the first answer closes the circuit",
        )
    if report.open_circuits > _NAMED:
        yield Finding(
            Level.WARNING,
            "callback circuits",
            f"{report.open_circuits} receivers do not answer and have an open circuit",
            "One message at a time is tried of each; the others stay due.",
            "see Records → Receivers in the admin",
        )


def dead_letters(view: View) -> Iterator[Finding]:
    letters = Job.objects.filter(ACTIONABLE).order_by("-finished_at")
    yield from _finding(
        _ids(letters),
        "dead letters",
        "failed for good and wait for a decision",
        "They are kept for three times the retention time, then deleted.",
        f"`{command_line('dlq groups')}` shows why they failed; then `dlq retry` or `dlq dismiss`",
        level=Level.WARNING,
    )


def _oldest(jobs: QuerySet[Job]) -> list[Job]:
    return list(jobs.defer("payload", "result").order_by("id")[:MAX_READ])


def _ids(rows: QuerySet[Any]) -> list[str]:
    return list(rows.values_list("id", flat=True)[: MAX_READ + 1])


def _without_ticket(jobs: Sequence[Job], view: View) -> list[str]:
    """Jobs that Redis has neither queued nor leased nor ending. A fleet whose Redis is away is left out."""
    lines: dict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in jobs:
        lines[job.fleet, job.pool].append(job)
    missing = []
    for (fleet, pool), waiting in lines.items():
        try:
            found = view.ports.leases(fleet).has_tickets(pool, [job.ticket for job in waiting])
        except LeasingUnavailable:
            continue
        missing += [job for job, has in zip(waiting, found, strict=True) if not has]
    return _unchanged(missing)


def _unchanged(jobs: Sequence[Job]) -> list[str]:
    """The jobs whose row did not change meanwhile: the others were not stuck."""
    now = {pk: (state, live) for pk, state, live in Job.objects.filter(
        id__in=[job.id for job in jobs]).values_list("id", "state", "live_attempt")}  # fmt: skip
    return [job.id for job in jobs if now.get(job.id) == (job.state, job.live_attempt)]


def _finding(
    ids: Sequence[str], check: str, summary: str, consequence: str, advice: str, *, level: Level = Level.ERROR
) -> Iterator[Finding]:
    if not ids:
        return
    number = f"more than {MAX_READ}" if len(ids) > MAX_READ else str(len(ids))
    named = ", ".join(ids[:_NAMED]) + (", …" if len(ids) > _NAMED else "")
    yield Finding(level, check, f"{number} {summary} ({named})", consequence, advice)
