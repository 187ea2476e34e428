from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.screen import age, line, plain, progress, table
from foundation.texts import counted
from gpus.registry.audit import cli_actor
from jobs import ports
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
from jobs.reports.failures import DeadLetterGroup, dead_letter_groups
from jobs.reports.jobs import JobFilter

if TYPE_CHECKING:
    from rich.table import Table

STEP = 200
_FILTERS = (
    *("model", "tenant", "error_code", "fingerprint"),
    *("tag", "server", "created_after", "created_before"),
)
_DEEDS = {"retry": BulkAction.RETRY, "dismiss": BulkAction.DISMISS}


class Command(TerminalCommand):
    help = (
        "Dead letters: the last ones, their groups by kind of failure, and what to do with them: retry or "
        "dismiss some by id, or all that match, after a count and a question."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("what", nargs="?", default="list", choices=["list", "groups", *_DEEDS])
        parser.add_argument("ids", nargs="*", metavar="ID", help="of retry and dismiss, in place of a filter")
        add_filters(parser)
        parser.add_argument("--all", action="store_true", help="every dead letter")
        parser.add_argument("--dry-run", action="store_true", help="say how many, and do nothing")
        self.add_yes(parser)
        parser.add_argument("--limit", type=positive, default=20, help="of list and groups (default 20)")

    def act(self, options: dict[str, Any]) -> int | None:
        if options["what"] in _DEEDS:
            return self._do(_DEEDS[options["what"]], options)
        if options["ids"]:
            raise CommandError("ids go with retry and dismiss; `python3 manage.py job ID` shows one")
        now, wanted, limit = ports.production_ports().clock.now(), chosen(options), options["limit"]
        if options["what"] == "groups":
            groups = dead_letter_groups(wanted, at_most=limit)
            if self.as_json:
                self.print_json({"results": [group.as_json() for group in groups]})
            elif groups:
                self.show(group_table(groups, now))
            else:
                self.print("no dead letters")
            return None
        rows = wanted.dead_letters().select_related("tenant").order_by("-finished_at", "-id")
        letters = list(rows[:limit])
        if self.as_json:
            self.print_json([letter_document(job) for job in letters])
        elif letters:
            self.show(letter_table(letters, now))
            if len(letters) == limit:
                self.print("… older ones with --limit")
        else:
            self.print("no dead letters")
        return None

    def _do(self, deed: BulkAction, options: dict[str, Any]) -> int | None:
        wanted = chosen(options)
        if options["ids"]:
            if wanted != JobFilter() or options["all"]:
                raise CommandError("give job ids or a filter, not both")
            return self._do_each(deed, [job_id.upper() for job_id in options["ids"]], options)
        if wanted == JobFilter() and not options["all"]:
            raise CommandError("give job ids, a filter such as --fingerprint or --model, or --all")
        total = count(wanted, deed)
        word = deed.value.replace("_jobs", "")
        if options["dry_run"] or not total:
            self._tell_count(word, total)
            return None
        self.confirm(f"{word} {counted(total, 'dead letter')}?", options)
        outcome = work_through(wanted, deed, total)
        others = f", {outcome.refused} had moved on meanwhile" if outcome.refused else ""
        left = f"; {outcome.remaining} match and are left" if outcome.remaining else ""
        self.report(asdict(outcome), f"{word}: {outcome.done} done{others}{left}")
        return None

    def _do_each(self, deed: BulkAction, job_ids: list[str], options: dict[str, Any]) -> int | None:
        if options["dry_run"]:
            self._tell_count(deed.value.replace("_jobs", ""), len(job_ids))
            return None
        told = each(job_ids, deed)
        self.report(told, *(f"{one['job_id']} {one['error'] or 'done'}" for one in told))
        return None if all(one["done"] for one in told) else 1

    def _tell_count(self, word: str, total: int) -> None:
        said = f"would {word} {counted(total, 'dead letter')}" if total else "no dead letter matches"
        self.report({"would": word, "jobs": total}, said)


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


def work_through(chosen_ones: JobFilter, deed: BulkAction, total: int) -> BulkOutcome:
    """Retry or dismiss the chosen jobs, page by page, at most `total`: a job that fails again meanwhile is
    not taken twice."""
    ports = jobs.ports.production_ports()
    act = {BulkAction.RETRY: retry_jobs, BulkAction.DISMISS: dismiss_jobs}[deed]
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
