"""`submit`: from the command line to the same service, through the same checks as the API's."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from dispatcher_project.cli.texts import plain
from foundation.http_api.json_body import read_json
from foundation.http_api.problems import Problem
from jobs import ports
from jobs.domain.states import JobState, is_final
from jobs.models import Job, Tenant
from jobs.submission.request import Submitted, read_item
from jobs.submission.submit import submit_job

_LOOK_FIRST_SECONDS, _LOOK_CAP_SECONDS = 0.1, 1.0


def read_payload(text: str) -> Any:
    """JSON as it stands, ``-`` for stdin, ``@file`` for a file's. Raises CommandError."""
    try:
        if text == "-":
            raw = sys.stdin.buffer.read()
        elif text.startswith("@"):
            raw = Path(text[1:]).read_bytes()
        else:
            raw = os.fsencode(text)
    except OSError as error:
        raise CommandError(f"cannot read the payload: {error}") from None
    try:
        return read_json(raw)
    except Problem as problem:
        raise CommandError(f"the payload: {_problem_text(problem)}") from None


def submit(body: dict[str, Any], tenant: Tenant) -> Submitted:
    """body: as of POST /queue/submit; None means not given. Raises CommandError and Refused."""
    given = {name: value for name, value in body.items() if value is not None}
    try:
        request = read_item(given)
    except Problem as problem:
        raise CommandError(_problem_text(problem)) from None
    return submit_job(request, tenant=tenant, ports=ports.production_ports())


def wait_for_end(job_id: str, seconds: float | None) -> Job:
    """The job once it is over, or as it stands when the time is. Its row is asked, first often, then each
    second: what the database says is true, whatever Redis does."""
    until = None if seconds is None else time.monotonic() + seconds
    pause = _LOOK_FIRST_SECONDS
    while True:
        job = Job.objects.defer("payload").get(id=job_id)
        if is_final(JobState(job.state)) or (until is not None and time.monotonic() >= until):
            return job
        time.sleep(pause)
        pause = min(pause * 1.5, _LOOK_CAP_SECONDS)


def _problem_text(problem: Problem) -> str:
    details = [f"{error.pointer[1:]}: {error.detail}" for error in problem.errors]
    return plain("; ".join(details) or problem.detail)
