from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import date, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.screen import table
from jobs.api.usage import usage_json
from jobs.reports.usage import DEFAULT_DAYS, DELIMITERS, UsageBy, as_csv, read_day, usage, usage_of_all


class Command(TerminalCommand):
    help = (
        "Show what tenants used: GPU-seconds and ended jobs, of all tenants or of one by day, model or tag."
    )

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", nargs="?", help="default: all, a row each")
        parser.add_argument(
            "--from", dest="first", type=_day, metavar="DAY", help="first UTC day, such as 2026-01-31"
        )
        parser.add_argument(
            "--to", dest="last", type=_day, metavar="DAY", help="last UTC day (default: today)"
        )
        parser.add_argument(
            "--by", choices=[by.value for by in UsageBy], help="rows of one tenant (default: day)"
        )
        parser.add_argument(
            "--csv",
            nargs="?",
            const="comma",
            choices=[*DELIMITERS],
            help="print a table for spreadsheets (default %(const)s; semicolon: with decimal commas)",
        )

    def act(self, options: dict[str, Any]) -> int | None:
        last = options["last"] or timezone.now().date()
        first = options["first"] or last - timedelta(days=DEFAULT_DAYS - 1)
        if first > last:
            raise CommandError(f"--from {first} is after --to {last}")
        if options["tenant"] is None:
            if options["by"] is not None:
                raise CommandError("--by needs a tenant: `usage TENANT --by model`")
            title, rows = "tenant", usage_of_all(first, last)
        else:
            by = UsageBy(options["by"] or UsageBy.DAY)
            title, rows = by.value, usage(tenant_named(options["tenant"]).pk, first, last, by)
        if options["csv"]:
            self.print(*as_csv(title, rows, options["csv"]).splitlines())
        elif self.as_json:
            found = [usage_json(row) for row in rows]
            self.print_json({"from": first, "to": last, "by": title, "rows": found})
        elif rows:
            cells = [
                (
                    row.key or "other tags",
                    f"{row.gpu_seconds:.1f}",
                    str(row.completed),
                    str(row.failed),
                    str(row.cancelled),
                )
                for row in rows
            ]
            heads = (title, "GPU-seconds", "completed", "failed", "cancelled")
            self.show(table(heads, cells, right=heads[1:]))
        else:
            self.print(f"no job ended from {first} to {last}")
        return None


def _day(text: str) -> date:
    """Raises ArgumentTypeError."""
    try:
        return read_day(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no day such as 2026-01-31") from None
