from __future__ import annotations

import json
from typing import Any

from django.core.management.base import CommandParser

from dispatcher_client.submit_options import SubmitOptions, add_submit_options
from dispatcher_project.cli.command import TerminalCommand, positive_seconds
from dispatcher_project.cli.submitting import read_payload, submit, wait_for_end
from dispatcher_project.cli.tenants import tenant_named
from dispatcher_project.cli.texts import plain
from jobs.api.representations import starts_json
from jobs.domain.states import JobState, is_final
from jobs.submission.request import Submitted

FAILED, STILL_GOING = 1, 3


class Command(TerminalCommand):
    help = "Submits a job, as an operator of this installation. With --wait, exit status 1: it failed or was "
    help += "cancelled; 3: it is not over yet."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("model")
        parser.add_argument("payload", help="JSON, - for stdin, or @FILE")
        parser.add_argument("--tenant", help="whose job; default: operator's, or the only one's")
        add_submit_options(parser)
        parser.add_argument(
            "--wait", nargs="?", type=positive_seconds, const=float("inf"), metavar="SECONDS",
            help="until it is over, or so long",
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
            self.print_json(
                {"job_id": job.id, "status": job.state, "result": job.result, "error_code": job.error_code,
                 "error_message": job.error_message}
            )  # fmt: skip
        elif job.state == JobState.COMPLETED:
            self.print(json.dumps(job.result, ensure_ascii=not self._speaks_unicode(), indent=2))
        else:
            self.print(f"{job.state} {job.error_code} {plain(job.error_message)}".rstrip())
        if not is_final(JobState(job.state)):
            return STILL_GOING
        return None if job.state == JobState.COMPLETED else FAILED

    def _show(self, submitted: Submitted) -> None:
        job = submitted.job
        told = {"job_id": job.id, "outcome": submitted.outcome.value, "position": submitted.position,
                "starts_in": starts_json(submitted.starts), "replayed": submitted.replayed}  # fmt: skip
        if self.as_json:
            self.print_json(told)
            return
        where = f", position {submitted.position}" if submitted.position else ""
        again = " (submitted before under this key)" if submitted.replayed else ""
        self.print(f"{job.id} {submitted.outcome.value}{where}{again}")

    def _speaks_unicode(self) -> bool:
        return "utf" in str(getattr(self.stdout, "encoding", "") or "utf-8").lower()
