from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser
from django.db.models import Prefetch

from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.job_filters import add_filters, job_filter
from dispatcher_project.cli.paging import newest_page
from dispatcher_project.cli.screen import age, line, table
from dispatcher_project.management.commands.job import STATE_COLOURS, running_text
from jobs import ports
from jobs.api.representations import nodes_of_jobs, summary_json
from jobs.models import Job
from jobs.reports.jobs import SHOWN_ATTEMPTS, last_attempts
from jobs.reports.progress import read_progress

if TYPE_CHECKING:
    from rich.table import Table


class Command(TerminalCommand):
    help = "List jobs, the newest first. `job ID` shows one, `dlq` the dead letters."

    def add_options(self, parser: CommandParser) -> None:
        add_filters(parser, with_state=True)
        parser.add_argument("--before", metavar="ID", help="only jobs older than this one: the next page")
        parser.add_argument("--limit", type=positive, default=20, help="rows (default 20)")

    def act(self, options: dict[str, Any]) -> int | None:
        wanted = job_filter(options)
        rows = replace(wanted, tenant=None).rows().select_related("tenant")
        if wanted.tenant is not None:  # by its id: the index of a tenant's jobs has their order
            rows = rows.filter(tenant=tenant_named(wanted.tenant).pk)
        if self.as_json:
            rows = rows.prefetch_related(Prefetch("attempts", last_attempts(), to_attr=SHOWN_ATTEMPTS))
        shown, last = newest_page(rows, options)
        read_progress(shown)
        if self.as_json:
            self.print_json({"results": job_rows(shown), "before": last})
        elif shown:
            self.show(job_table(shown, ports.production_ports().clock.now()))
            if last is not None:
                self.print(f"… older ones: --before {last}")
        else:
            self.print("no job matches")
        return None


def job_rows(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The API's documents of jobs in a list, for operators, with the tenants' names."""
    nodes = nodes_of_jobs(jobs, ports.production_ports())
    return [
        {**summary_json(job, node=nodes.get(job.id), in_full=True), "tenant": job.tenant.name} for job in jobs
    ]


def job_table(jobs: Sequence[Job], now: datetime) -> Table:
    rows = [
        (
            job.id,
            line((running_text(job), STATE_COLOURS.get(job.state, ""))),
            job.model,
            job.tenant.name,
            str(job.priority),
            f"{age((now - job.created_at).total_seconds())} ago",
            _took(job, now),
            str(job.attempts_made),
            line((job.error_code, "red")),
            job.error_message.partition("\n")[0],
        )
        for job in jobs
    ]
    heads = ("job", "state", "model", "tenant", "prio", "submitted", "took", "tries", "error", "")
    return table(heads, rows, right=["prio", "tries"])


def _took(job: Job, now: datetime) -> str:
    """From the first start to the end, or until now."""
    if job.started_at is None:
        return "–"
    return age(((job.finished_at or now) - job.started_at).total_seconds())
