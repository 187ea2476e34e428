"""The filters of jobs as options, and bulk actions on the jobs that match, page by page."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

import jobs.ports
from dispatcher_project.cli.command import tenant_named
from dispatcher_project.cli.screen import progress
from foundation.moments import read_moment
from gpus.registry.audit import cli_actor
from jobs.domain.states import JobState
from jobs.operations.bulk import BulkAction, BulkOutcome, cancel_jobs, dismiss_jobs, retry_jobs
from jobs.reports.jobs import JobFilter

PAGE_JOBS = 200
"""Jobs of one step of a bulk action."""
_FILTERS = (
    *("state", "model", "tenant", "error_code", "fingerprint"),
    *("tag", "server", "created_after", "created_before", "client_errors"),
)


def add_filters(parser: CommandParser, *, with_state: bool = False) -> None:
    if with_state:
        parser.add_argument("--state", choices=[state.value for state in JobState], help="filter")
    for name in ("model", "tenant", "error-code", "tag"):
        parser.add_argument(f"--{name}", type=_text, help="filter")
    parser.add_argument("--fingerprint", help="filter: the group's, as `dlq groups` shows it")
    if not with_state:
        parser.add_argument(
            "--client-errors",
            action="store_const",
            const=True,
            help="filter: failures that the client's input caused; they are left out otherwise",
        )
    parser.add_argument("--server", type=_text, help="filter: an attempt ran on this server")
    parser.add_argument(
        *("--created-after", "--since"),
        type=_moment,
        metavar="TIME",
        help="filter, such as 2026-01-31T12:00 (UTC), or 30m, 2h, 7d for that long ago",
    )
    parser.add_argument("--created-before", type=_moment, metavar="TIME", help="filter, the same")


def job_filter(options: dict[str, Any]) -> JobFilter:
    """The filter of the options. Raises CommandError for a tenant that does not exist."""
    given = {name: options[name] for name in _FILTERS if options.get(name) is not None}
    if "state" in given:
        given["state"] = JobState(given["state"])
    wanted = JobFilter(**given)
    if wanted.tenant is not None:
        tenant_named(wanted.tenant)
    return wanted


def _text(text: str) -> str:
    """A value of a filter: the API's rules."""
    if not 1 <= len(text) <= 64 or "\0" in text:
        raise argparse.ArgumentTypeError(f"{text[:64]!r} has not 1 to 64 characters")
    return text


def _moment(text: str) -> datetime:
    try:
        return read_moment(text, timezone.now())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(frozen=True, slots=True)
class ManyDone(BulkOutcome):
    """The outcome of all pages. entries: ids of their audit entries."""

    entries: tuple[int, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        return {"done": self.done, "remaining": self.remaining, "refused": self.refused}


def act_in_pages(wanted: JobFilter, action: BulkAction, total: int) -> ManyDone:
    """Cancel, retry or dismiss the matching jobs page by page, `total` at most: a job that fails again
    meanwhile is not retried twice."""
    ports = jobs.ports.production_ports()
    act = {
        BulkAction.CANCEL: cancel_jobs,
        BulkAction.RETRY: retry_jobs,
        BulkAction.DISMISS: dismiss_jobs,
    }[action]
    done = refused = 0
    remaining = total
    entries: list[int] = []
    with progress(sys.stderr, action.value.replace("_", " "), total) as draw:
        while done + refused < total and remaining:
            at_most = min(PAGE_JOBS, total - done - refused)
            step = act(wanted, by=cli_actor(), ports=ports, at_most=at_most)
            done, refused, remaining = done + step.done, refused + step.refused, step.remaining
            entries += [] if step.entry is None else [step.entry]
            if not step.done + step.refused:
                break
            draw(done + refused)
    return ManyDone(done, remaining, refused, entries=tuple(entries))
