from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db.models import Count, Q
from django.utils import timezone

from dispatcher_project.cli.command import TerminalCommand, tenant_named
from dispatcher_project.cli.screen import table
from foundation.program import command_line
from jobs.api.tenants import tenant_json
from jobs.domain.states import JobState
from jobs.limits.gpu_seconds import used_seconds
from jobs.models import Job, Tenant
from jobs.reports.jobs import UNFINISHED

_NO_LIMIT = "–"


class Command(TerminalCommand):
    help = "List tenants: share, limits, running and waiting jobs, GPU-seconds of this UTC day, API keys."

    def add_options(self, parser: CommandParser) -> None:
        parser.add_argument("tenant", nargs="?", help="default: all")

    def act(self, options: dict[str, Any]) -> int | None:
        chosen = Tenant.objects.all()
        if options["tenant"] is not None:
            chosen = chosen.filter(pk=tenant_named(options["tenant"]).pk)
        valid = Q(api_keys__revoked=False) & (
            Q(api_keys__expiry_date=None) | Q(api_keys__expiry_date__gt=timezone.now())
        )
        tenants = list(chosen.annotate(keys=Count("api_keys", filter=valid)))
        used = used_seconds([tenant.pk for tenant in tenants], timezone.now())
        states = [state.value for state in UNFINISHED]
        counts = (
            Job.objects.filter(tenant__in=tenants, state__in=states).order_by().values_list("tenant", "state")
        )
        jobs: dict[tuple[int, bool], int] = {}
        for tenant_id, state, number in counts.annotate(Count("id")):
            key = (tenant_id, state == JobState.RUNNING)
            jobs[key] = jobs.get(key, 0) + number
        rows = [
            {
                **tenant_json(tenant),
                "running": jobs.get((tenant.pk, True), 0),
                "waiting": jobs.get((tenant.pk, False), 0),
                "gpu_seconds_today": round(used[tenant.pk], 3),
                "valid_keys": tenant.keys,
            }
            for tenant in tenants
        ]
        if self.as_json:
            self.print_json(rows)
        elif rows:
            self.show(table(_HEADS, [_cells(row) for row in rows], right=_HEADS[1:]))
        else:
            self.print(f"no tenant yet: `{command_line('create_key')} --tenant NAME` makes one")
        return None


_HEADS = ("tenant", "weight", "running", "waiting", "GPU-s today", "submits/s", "keys")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["tenant"],
        f"{row['weight']:g}",
        _of(row["running"], row["max_running"]),
        _of(row["waiting"], row["max_queued"]),
        _of(f"{row['gpu_seconds_today']:.0f}", row["daily_gpu_seconds"]),
        _NO_LIMIT if row["submits_per_second"] is None else f"{row['submits_per_second']:g}",
        str(row["valid_keys"]),
    )


def _of(value: object, limit: float | None) -> str:
    return str(value) if limit is None else f"{value} of {limit:g}"
