"""`dlq`: which dead letters are meant, how they are shown, and bulk work in steps with a bar."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandParser

import jobs.ports
from dispatcher_project.cli.screen import line, progress, table
from dispatcher_project.cli.tenants import tenant_named
from dispatcher_project.cli.texts import age, plain
from gpus.registry.audit import cli_actor
from jobs.domain.errors import NotDeadLetter
from jobs.models import Job
from jobs.operations.jobs import (
    BulkAction,
    BulkOutcome,
    count,
    dismiss_dead_letter,
    dismiss_jobs,
    retry_dead_letter,
    retry_jobs,
)
from jobs.reports.failures import DeadLetterGroup
from jobs.reports.jobs import JobFilter

if TYPE_CHECKING:
    from rich.table import Table

STEP = 200
_FILTERS = (
    "model",
    "tenant",
    "error_code",
    "fingerprint",
    "tag",
    "server",
    "created_after",
    "created_before",
)


def add_filters(parser: CommandParser) -> None:
    for name in ("model", "tenant", "error-code", "tag"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--fingerprint", help="of a group, as `dlq groups` shows it")
    parser.add_argument("--server", help="one that an attempt ran on")
    for name in ("created-after", "created-before"):
        parser.add_argument(f"--{name}", type=_moment, metavar="TIME", help="such as 2026-01-31T12:00 (UTC)")


def chosen(options: dict[str, Any]) -> JobFilter:
    """Raises CommandError for a tenant that does not exist."""
    wanted = JobFilter(**{name: options[name] for name in _FILTERS if options.get(name) is not None})
    if wanted.tenant is not None:
        tenant_named(wanted.tenant)
    return wanted


def _moment(text: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time, such as 2026-01-31T12:00") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def how_many(chosen_ones: JobFilter, deed: BulkAction) -> int:
    return count(chosen_ones, deed)


def work_through(chosen_ones: JobFilter, deed: BulkAction, total: int) -> BulkOutcome:
    """Step by step until none that matched is left. What fails anew meanwhile is not taken again: at most
    `total` are done."""
    ports, act = (
        jobs.ports.production_ports(),
        {BulkAction.RETRY: retry_jobs, BulkAction.DISMISS: dismiss_jobs}[deed],
    )
    done = refused = 0
    remaining = total
    with progress(sys.stderr, deed.value.replace("_", " "), total) as draw:
        while done + refused < total and remaining:
            step = act(chosen_ones, by=cli_actor(), ports=ports, at_most=min(STEP, total - done - refused))
            done, refused, remaining = done + step.done, refused + step.refused, step.remaining
            if not step.done + step.refused:
                break
            draw(done + refused)
    return BulkOutcome(done, remaining, refused)


def each(job_ids: Sequence[str], deed: BulkAction) -> list[dict[str, Any]]:
    """One after the other, by id."""
    act: Callable[..., None] = {BulkAction.RETRY: retry_dead_letter, BulkAction.DISMISS: dismiss_dead_letter}[
        deed
    ]
    told = []
    for job_id in job_ids:
        try:
            act(job_id, ports=jobs.ports.production_ports(), by=cli_actor())
            told.append({"job_id": job_id, "done": True, "error": None})
        except NotDeadLetter as refusal:
            told.append({"job_id": job_id, "done": False, "error": plain(refusal)})
    return told


def letter_table(letters: Sequence[Job], now: datetime) -> Table:
    rows = [
        (
            job.id,
            job.model,
            job.tenant.name,
            _ago(job.finished_at, now),
            str(job.attempts_made),
            line((job.error_code, "red")),
            job.error_message,
        )
        for job in letters
    ]
    return table(("job", "model", "tenant", "failed", "attempts", "error", ""), rows, right=["attempts"])


def letter_document(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "model": job.model,
        "tenant": job.tenant.name,
        "finished_at": job.finished_at,
        "attempts": job.attempts_made,
        "error_code": job.error_code,
        "error_message": job.error_message,
        "fingerprint": job.error_fingerprint,
    }


def group_table(groups: Sequence[DeadLetterGroup], now: datetime) -> Table:
    rows = [
        (
            group.fingerprint,
            str(group.count),
            ", ".join(f"{model} {number}" for model, number in group.models.items()),
            _ago(group.last_at, now),
            line((group.error_code, "red")),
            group.message,
        )
        for group in groups
    ]
    return table(("fingerprint", "jobs", "models", "last", "error", ""), rows, right=["jobs"])


def _ago(at: datetime | None, now: datetime) -> str:
    return f"{age((now - at).total_seconds())} ago" if at else "–"
