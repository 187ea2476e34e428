from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.job_filters import act_in_pages, add_filters, job_filter
from dispatcher_project.cli.screen import plain
from foundation.texts import counted
from gpus.registry.audit import cli_actor
from jobs.domain.errors import NotCancellable
from jobs.models import Job
from jobs.operations.bulk import BulkAction, count
from jobs.operations.jobs import CancelOutcome, cancel_job, slot_held_until
from jobs.reports.jobs import JobFilter

SOME_REFUSED = 1


class Command(TerminalCommand):
    help = (
        "Cancel jobs by id, or all that match a filter, after a count and a question. Waiting jobs end at "
        "once; running ones are stopped. Exit status 1 if a job named by its id could not be cancelled."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="*", metavar="ID", help="instead of a filter")
        add_filters(parser, with_state=True)
        parser.add_argument("--all", action="store_true", help="every job that has not ended")
        parser.add_argument("--dry-run", action="store_true", help="only count the jobs")
        self.add_yes(parser)

    def act(self, options: dict[str, Any]) -> int | None:
        wanted = job_filter(options)
        has_filter = wanted != JobFilter() or options["all"]
        if bool(options["ids"]) == has_filter:
            raise CommandError("give job ids, or a filter such as --model or --tag, or --all")
        if options["ids"]:
            return self._cancel_each([job_id.upper() for job_id in options["ids"]], options)
        total = count(wanted, BulkAction.CANCEL, jobs.ports.production_ports())
        if options["dry_run"] or not total:
            self._show_count(total)
            return None
        self.confirm(f"cancel {counted(total, 'job')}?", options)
        outcome = act_in_pages(wanted, BulkAction.CANCEL, total)
        others = f", {outcome.refused} ended meanwhile" if outcome.refused else ""
        left = f"; {outcome.remaining} more match" if outcome.remaining else ""
        self.report(
            outcome.counts, f"{counted(outcome.done, 'job')} cancelled or being stopped{others}{left}"
        )
        return None

    def _cancel_each(self, job_ids: Sequence[str], options: dict[str, Any]) -> int | None:
        if options["dry_run"]:
            self._show_count(len(job_ids))
            return None
        outcomes = [cancel_one(job_id) for job_id in job_ids]
        self.report({"results": outcomes}, *(_text(one) for one in outcomes))
        return SOME_REFUSED if any(one["error"] for one in outcomes) else None

    def _show_count(self, total: int) -> None:
        text = f"would cancel {counted(total, 'job')}" if total else "no unfinished job matches"
        self.report({"would": "cancel", "jobs": total}, text)


def cancel_one(job_id: str) -> dict[str, Any]:
    """Cancel a job. Return the API's answer, with the reason if it was refused."""
    found: dict[str, Any] = {"job_id": job_id, "outcome": None, "may_hold_slot_until": None, "error": None}
    try:
        outcome = cancel_job(job_id, ports=jobs.ports.production_ports(), by=cli_actor())
    except Job.DoesNotExist:
        return {**found, "error": "there is no such job"}
    except NotCancellable as refusal:
        return {**found, "error": plain(refusal)}
    until = slot_held_until(job_id) if outcome is CancelOutcome.REQUESTED else None
    return {**found, "outcome": outcome.value, "may_hold_slot_until": until}


def _text(one: dict[str, Any]) -> str:
    if one["error"]:
        return f"{one['job_id']} not cancelled: {one['error']}"
    if one["outcome"] == CancelOutcome.CANCELLED:
        return f"{one['job_id']} cancelled"
    until = one["may_hold_slot_until"]
    at_most = f", at the latest at {until:%H:%M:%S} UTC" if until else ""
    return f"{one['job_id']} is being stopped: it ends once its GPU is proven free{at_most}"
