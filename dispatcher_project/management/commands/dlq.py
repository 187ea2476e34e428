from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from dispatcher_project.cli.arguments import positive
from dispatcher_project.cli.command import TerminalCommand
from dispatcher_project.cli.dead_letters import (
    add_filters,
    chosen,
    each,
    group_table,
    how_many,
    letter_document,
    letter_table,
    work_through,
)
from foundation.texts import counted
from jobs import ports
from jobs.operations.jobs import BulkAction
from jobs.reports.failures import dead_letter_groups
from jobs.reports.jobs import JobFilter

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
        total = how_many(wanted, deed)
        word = deed.value.replace("_jobs", "")
        if options["dry_run"] or not total:
            self._tell_count(word, total)
            return None
        self.confirm(f"{word} {counted(total, 'dead letter')}?", options)
        outcome = work_through(wanted, deed, total)
        if self.as_json:
            self.print_json(asdict(outcome))
        else:
            others = f", {outcome.refused} had moved on meanwhile" if outcome.refused else ""
            left = f"; {outcome.remaining} match and are left" if outcome.remaining else ""
            self.print(f"{word}: {outcome.done} done{others}{left}")
        return None

    def _do_each(self, deed: BulkAction, job_ids: list[str], options: dict[str, Any]) -> int | None:
        if options["dry_run"]:
            self._tell_count(deed.value.replace("_jobs", ""), len(job_ids))
            return None
        told = each(job_ids, deed)
        if self.as_json:
            self.print_json(told)
        else:
            self.print(*(f"{one['job_id']} {one['error'] or 'done'}" for one in told))
        return None if all(one["done"] for one in told) else 1

    def _tell_count(self, word: str, total: int) -> None:
        if self.as_json:
            self.print_json({"would": word, "jobs": total})
        else:
            self.print(f"would {word} {counted(total, 'dead letter')}" if total else "no dead letter matches")
