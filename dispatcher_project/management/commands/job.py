from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.job_text import (
    event_document,
    event_lines,
    job_document,
    job_parts,
    latest_events,
)
from jobs import ports
from jobs.domain.states import JobState, is_final
from jobs.models import Event, Job

LOOK_SECONDS = 0.5


class Command(TerminalCommand):
    help = "Shows a job's way: state, attempts, events. --follow goes on until it is over."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("id", metavar="ID")
        parser.add_argument("--follow", action="store_true", help="show what happens, until it is over")

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
        """New events as they are committed; with --json one document each, and the job itself at last."""
        last = Event.objects.filter(job=job).order_by("-seq").first()
        over = is_final(JobState(job.state))
        while not over:
            time.sleep(LOOK_SECONDS)
            job = _find(job.id)
            over = is_final(JobState(job.state))  # read before the events: the last one is among them
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
    """With its tenant, without its payload."""
    rows = Job.objects.select_related("tenant").defer("payload")
    job = rows.filter(id=job_id).first()
    if job is None:
        raise CommandError(f"there is no job {job_id}: never submitted here, or removed after its retention")
    return job
