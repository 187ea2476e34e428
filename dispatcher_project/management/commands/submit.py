from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from artifacts.refs import only_ref
from dispatcher_client.submit_options import SubmitOptions, add_submit_options
from dispatcher_project.cli.command import TerminalCommand, positive_seconds, tenant_named
from dispatcher_project.cli.screen import plain, problem_text
from foundation.http_api.json_body import read_json
from foundation.http_api.problems import Problem
from gpus.registry.audit import cli_actor
from jobs import ports
from jobs.api.representations import starts_json
from jobs.domain.states import JobState, is_final
from jobs.models import Job, Tenant
from jobs.submission.request import Outcome, Submitted, read_item
from jobs.submission.submit import submit_job

FAILED, NOT_ENDED = 1, 3
_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.1, 1.0


class Command(TerminalCommand):
    help = (
        "Submit a job as an operator of this installation. Exit status with --wait: 1 the job failed or was "
        "cancelled, 3 it has not ended yet."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("model", help="name of the model")
        parser.add_argument("payload", help="JSON; - reads standard input, @FILE a file")
        parser.add_argument("--tenant", help="tenant of the job (default: operator, or the only tenant)")
        add_submit_options(parser)
        parser.add_argument(
            "--wait", nargs="?", type=positive_seconds, const=float("inf"), metavar="SECONDS",
            help="wait for the end, SECONDS at most",
        )  # fmt: skip

    def act(self, options: dict[str, Any]) -> int | None:
        body = {name: options[name] for name in SubmitOptions.__annotations__}
        body |= {"model": options["model"], "payload": read_payload(options["payload"])}
        submitted = submit(body, tenant_named(options["tenant"]))
        if options["wait"] is None:
            self._show(submitted)
            return None
        if not self.as_json:
            self._show(submitted)
        job = wait_for_end(submitted.job.id, options["wait"])
        if self.as_json:
            self.print_json(end_json(job))
        elif job.state == JobState.COMPLETED:
            self.print(json.dumps(job.result, ensure_ascii=not self._prints_unicode(), indent=2))
            if (artifact_id := only_ref(job.result)) is not None:
                self.stderr.write(
                    f"The result is an artifact: `artifacts get {artifact_id} PATH` downloads it."
                )
        else:
            self.print(f"{job.state} {job.error_code} {plain(job.error_message)}".rstrip())
        if not is_final(JobState(job.state)):
            return NOT_ENDED
        return None if job.state == JobState.COMPLETED else FAILED

    def _show(self, submitted: Submitted) -> None:
        job = submitted.job
        document = {"job_id": job.id, "outcome": submitted.outcome.value, "position": submitted.position,
                "starts_in": starts_json(submitted.starts), "replayed": submitted.replayed}  # fmt: skip
        where = f", position {submitted.position}" if submitted.position else ""
        again = " (submitted before under this key)" if submitted.replayed else ""
        outcome = "starts now" if submitted.outcome is Outcome.LEASED else submitted.outcome.value
        self.report(document, f"{job.id} {outcome}{where}{again}")

    def _prints_unicode(self) -> bool:
        return "utf" in str(getattr(self.stdout, "encoding", "") or "utf-8").lower()


def end_json(job: Job) -> dict[str, Any]:
    """A job that was waited for, ended or not."""
    return {"job_id": job.id, "status": job.state, "result": job.result, "error_code": job.error_code,
            "error_message": job.error_message}  # fmt: skip


def read_payload(text: str) -> Any:
    """The payload from JSON, ``-`` (stdin) or ``@file``. Raises CommandError."""
    try:
        if text == "-":
            raw = sys.stdin.buffer.read()
        elif text.startswith("@"):
            raw = Path(text[1:]).read_bytes()
        else:
            raw = os.fsencode(text)
    except OSError as error:
        raise CommandError(f"the payload cannot be read: {error}") from None
    try:
        return read_json(raw, what="it")
    except Problem as problem:
        raise CommandError(f"the payload: {problem_text(problem)}") from None


def submit(body: dict[str, Any], tenant: Tenant) -> Submitted:
    """Submit a job. body: as for POST /queue/submit, None if absent. Raises CommandError and Refused."""
    given = {name: value for name, value in body.items() if value is not None}
    try:
        request = read_item(given)
    except Problem as problem:
        raise CommandError(problem_text(problem)) from None
    return submit_job(replace(request, by=cli_actor()), tenant=tenant, ports=ports.production_ports())


def wait_for_end(job_id: str, seconds: float | None) -> Job:
    """The job at its end, or as it is after so many seconds. Its row is polled, often at first, then once a
    second: the database is right in any state of Redis."""
    until = None if seconds is None else time.monotonic() + seconds
    pause = _FIRST_POLL_SECONDS
    while True:
        job = Job.objects.defer("payload").get(id=job_id)
        if is_final(JobState(job.state)) or (until is not None and time.monotonic() >= until):
            return job
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_POLL_SECONDS)
