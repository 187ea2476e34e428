from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

import jobs.ports
from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.job_filters import act_in_pages, add_filters, job_filter
from dispatcher_project.cli.screen import age, line, plain, table
from foundation.program import command_line
from foundation.texts import counted
from gpus.registry.audit import cli_actor
from jobs import ports
from jobs.api.representations import nodes_of_jobs, run_id_of
from jobs.domain.errors import NotDeadLetter, RunWasCancelled
from jobs.domain.states import JobState
from jobs.models import Job
from jobs.operations.bulk import BulkAction, count
from jobs.operations.jobs import dismiss_dead_letter, retry_dead_letter
from jobs.reports.failures import DeadLetterGroup, dead_letter_groups
from jobs.reports.jobs import JobFilter
from jobs.reports.retried import Retried, jobs_of_entries, wait_for_retried

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

RETRY_WAIT_SECONDS = 3.0
_LONGEST_WAIT_SECONDS = 3600.0
_BULK_ACTIONS = {"retry": BulkAction.RETRY, "dismiss": BulkAction.DISMISS}


class Command(TerminalCommand):
    help = (
        "Dead letters: jobs that failed for good. List them or their groups by kind of failure; retry or "
        "dismiss some by id, or all that match a filter, after a count and a question. Failures that the "
        "client's input caused are listed with --client-errors. Exit status 1: a job was no dead letter, or "
        "failed again within --wait."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument(
            "action",
            nargs="?",
            default="list",
            choices=["list", "groups", *_BULK_ACTIONS],
            help="default: list",
        )
        parser.add_argument("ids", nargs="*", metavar="ID", help="to retry or dismiss, instead of a filter")
        add_filters(parser)
        parser.add_argument("--all", action="store_true", help="every dead letter")
        parser.add_argument("--dry-run", action="store_true", help="only count the jobs")
        self.add_yes(parser)
        parser.add_argument(
            "--wait",
            type=_seconds,
            metavar="SECONDS",
            help="how long retry waits to see which jobs fail again "
            f"(default {RETRY_WAIT_SECONDS:g}; 0: not at all)",
        )
        parser.add_argument("--limit", type=positive, default=20, help="rows of list and groups (default 20)")

    def act(self, options: dict[str, Any]) -> int | None:
        if options["action"] in _BULK_ACTIONS:
            return self._act_on_many(_BULK_ACTIONS[options["action"]], options)
        if options["ids"]:
            raise CommandError(f"ids are for retry and dismiss; `{command_line('job ID')}` shows a job")
        now, wanted, limit = ports.production_ports().clock.now(), job_filter(options), options["limit"]
        if options["action"] == "groups":
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
            nodes = nodes_of_jobs(letters, ports.production_ports())
            self.print_json([letter_document(job, nodes.get(job.id)) for job in letters])
        elif letters:
            self.show(letter_table(letters, now, nodes_of_jobs(letters, ports.production_ports())))
            if len(letters) == limit:
                self.print("… --limit shows older ones")
        else:
            self.print("no dead letters")
        return None

    def _act_on_many(self, action: BulkAction, options: dict[str, Any]) -> int | None:
        wanted = job_filter(options)
        if options["ids"]:
            if wanted != JobFilter() or options["all"]:
                raise CommandError("give job ids or a filter, not both")
            return self._act_on_each(action, [job_id.upper() for job_id in options["ids"]], options)
        if wanted == JobFilter() and not options["all"]:
            raise CommandError("give job ids, a filter such as --fingerprint or --model, or --all")
        total = count(wanted, action, ports.production_ports())
        verb = action.value.replace("_jobs", "")
        if options["dry_run"] or not total:
            self._show_count(verb, total)
            return None
        self.confirm(f"{verb} {counted(total, 'dead letter')}?", options)
        outcome = act_in_pages(wanted, action, total)
        others = f", {outcome.refused} changed meanwhile and were skipped" if outcome.refused else ""
        left = f"; {outcome.remaining} more match" if outcome.remaining else ""
        if action is not BulkAction.RETRY:
            self.report(outcome.counts, f"{verb}: {outcome.done} done{others}{left}")
            return None
        followed = jobs_of_entries(outcome.entries)
        found = wait_for_retried(followed, self._wait_seconds(options))
        of_last = f" (the last {len(followed)})" if len(followed) < outcome.done else ""
        self.report(
            {**outcome.counts, **asdict(found)},
            f"{outcome.done} retried{of_last}: {found.text}{others}{left}",
            *_hint(found),
        )
        return 1 if found.failed else None

    def _wait_seconds(self, options: dict[str, Any]) -> float:
        return RETRY_WAIT_SECONDS if options["wait"] is None else float(options["wait"])

    def _act_on_each(self, action: BulkAction, job_ids: list[str], options: dict[str, Any]) -> int | None:
        if options["dry_run"]:
            self._show_count(action.value.replace("_jobs", ""), len(job_ids))
            return None
        outcomes = act_on_each(job_ids, action)
        hint: list[str] = []
        if action is BulkAction.RETRY:
            done = [one["job_id"] for one in outcomes if one["done"]]
            found = wait_for_retried(done, self._wait_seconds(options))
            states = dict(Job.objects.filter(id__in=done).values_list("id", "state"))
            outcomes = [{**one, "status": states.get(one["job_id"])} for one in outcomes]
            hint = _hint(found)
        self.report(outcomes, *map(_text, outcomes), *hint)
        return None if all(one["done"] for one in outcomes) and not hint else 1

    def _show_count(self, verb: str, total: int) -> None:
        text = f"would {verb} {counted(total, 'dead letter')}" if total else "no dead letter matches"
        self.report({"would": verb, "jobs": total}, text)


def _seconds(text: str) -> float:
    """A span of at most an hour; 0 is allowed."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _LONGEST_WAIT_SECONDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of seconds from 0 to {_LONGEST_WAIT_SECONDS:.0f}"
        )
    return found


def act_on_each(job_ids: Sequence[str], action: BulkAction) -> list[dict[str, Any]]:
    """Retry or dismiss jobs by id; one entry for each, with its error."""
    acts: dict[BulkAction, Callable[..., None]] = {
        BulkAction.RETRY: retry_dead_letter,
        BulkAction.DISMISS: dismiss_dead_letter,
    }
    outcomes = []
    for job_id in job_ids:
        try:
            acts[action](job_id, ports=jobs.ports.production_ports(), by=cli_actor())
            outcomes.append({"job_id": job_id, "done": True, "error": None})
        except (NotDeadLetter, RunWasCancelled) as refusal:
            outcomes.append({"job_id": job_id, "done": False, "error": plain(refusal)})
    return outcomes


def _text(one: dict[str, Any]) -> str:
    status = one.get("status")
    text = "retried, failed again" if status == JobState.FAILED else f"retried, {status}"
    return f"{one['job_id']} {one['error'] or (text if status else 'done')}"


def _hint(found: Retried) -> list[str]:
    """What to do about jobs that failed again."""
    if not found.failed:
        return []
    return [f"`{command_line('dlq groups')}` shows why; --client-errors shows those with a bad input"]


def letter_table(letters: Sequence[Job], now: datetime, nodes: Mapping[str, str]) -> Table:
    """A table of dead letters. nodes: of workflow runs, by job id; a column if there are any."""
    rows = []
    for job in letters:
        row: list[str | Text] = [
            job.id,
            job.model,
            job.tenant.name,
            _ago(job.finished_at, now),
            str(job.attempts_made),
            line((job.error_code, "red")),
            job.error_message,
        ]
        if nodes:
            row.insert(-1, f"{run_id_of(job) or ''} {nodes.get(job.id, '')}".strip())
        rows.append(row)
    heads = [
        "job",
        "model",
        "tenant",
        "failed",
        "attempts",
        "error",
        *(["run and node"] if nodes else []),
        "",
    ]
    return table(heads, rows, right=["attempts"])


def letter_document(job: Job, node: str | None) -> dict[str, Any]:
    return {
        "job_id": job.id,
        "model": job.model,
        "tenant": job.tenant.name,
        "finished_at": job.finished_at,
        "attempts": job.attempts_made,
        "error_code": job.error_code,
        "error_message": job.error_message,
        "fingerprint": job.error_fingerprint,
        "run_id": run_id_of(job),
        "node": node,
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
