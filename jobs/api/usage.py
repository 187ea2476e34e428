"""GET /me: a key's tenant, models and limits. GET /usage: jobs and GPU-seconds of a tenant."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from django.conf import settings
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from foundation.http_api.parameters import allow_only, choice_parameter
from foundation.http_api.problems import parameter_problem
from gpus.models import ModelConfig
from gpus.registry.index_sync import read_paused
from jobs.api import answers
from jobs.api.base import JobView, OperatorView, principal_of, tenant_of
from jobs.api.tenants import TENANT, tenant_row
from jobs.domain.access import Principal
from jobs.limits.gpu_seconds import used_seconds
from jobs.limits.submit_limits import admit, limits_of
from jobs.models import ApiKey, Tenant
from jobs.reports.jobs import waiting_by_model_and_tenant
from jobs.reports.rollups import day_of
from jobs.reports.usage import (
    DEFAULT_DAYS,
    DELIMITERS,
    UsageBy,
    UsageRow,
    as_csv,
    read_day,
    total,
    typical_run_seconds,
    usage,
)
from jobs.submission.request import Allowed

_DELETED = "The API key was deleted. Send a valid one: `Authorization: Bearer <key>`."
_DATE = {"type": "string", "format": "date"}
PARAMETERS = (
    OpenApiParameter(
        "from", _DATE, description=f"First UTC day (default: {DEFAULT_DAYS - 1} days before `to`)."
    ),
    OpenApiParameter("to", _DATE, description="Last UTC day, included (default: today)."),
    OpenApiParameter("by", str, enum=[by.value for by in UsageBy], description="Rows by (default: day)."),
    OpenApiParameter("as", str, enum=["json", "csv"], description="Format of the answer (default: json)."),
    OpenApiParameter(
        "delimiter",
        str,
        enum=[*DELIMITERS],
        description="Of `as=csv` (default: comma). semicolon: with decimal commas, for spreadsheets of "
        "languages that write 1,5.",
    ),
)


class Me(JobView):
    @described(
        "get_me",
        "This key: its tenant, scopes, models, limits, and current use of the limits",
        answers={200: answers.Me},
        refusals=(403,),
        tag="account",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ())
        principal, ports = principal_of(request), self.ports
        tenant = _tenant(request)
        key = ApiKey.objects.filter(prefix=principal.name.removeprefix("key:")).first()
        if key is None:
            raise AuthenticationFailed(_DELETED)
        limits, rate = limits_of(tenant.pk, ports), admit(tenant.pk, 0, ports).rate
        waiting = waiting_by_model_and_tenant(Principal(tenant.pk, False, ""), ports.waiting_of_all)
        now = ports.clock.now()
        said: answers.Me = {
            "tenant": tenant.name,
            "key": {"prefix": key.prefix, "name": key.name, "kind": key.kind, "expires_at": key.expiry_date},
            "scopes": sorted(principal.scopes),
            "models": _models(tenant.pk, Allowed(limits.allowed_models, principal.models)),
            "limits": {
                "max_running": tenant.max_running,
                "max_queued": limits.max_queued or settings.DISPATCHER.tenant_max_queued,
                "max_queued_seconds": limits.max_queued_seconds,
                "submits_per_second": limits.submits_per_second,
                "submit_burst": limits.burst if limits.submits_per_second is not None else None,
                "daily_gpu_seconds": limits.daily_gpu_seconds,
            },
            "used": {
                "running": sum(line.running for line in waiting),
                "waiting": sum(line.scheduled + line.queued + line.retrying for line in waiting),
                "gpu_seconds_today": round(used_seconds([tenant.pk], now)[tenant.pk], 3),
                "submits_left": None if rate is None else int(rate.left),
            },
            "day_ends_at": day_of(now) + timedelta(days=1),
        }
        return Response(said)


def _models(tenant_id: int, may: Allowed) -> list[answers.MyModel]:
    rows = ModelConfig.objects.order_by("name").only("name", "payload_schema", "result_schema")
    paused, typical = read_paused().models, typical_run_seconds(tenant_id)
    return [
        {
            "model": row.name,
            "payload_schema": row.payload_schema,
            "result_schema": row.result_schema,
            "paused": row.name in paused,
            "typical_run_seconds": typical.get(row.name),
        }
        for row in rows
        if may.covers(row.name)
    ]


class Usage(JobView):
    @described(
        "get_usage",
        "What the key's tenant used: ended jobs and GPU-seconds",
        answers={200: answers.Usage},
        refusals=(400, 403),
        parameters=PARAMETERS,
        tag="account",
        description="By UTC day, model or tag. An attempt counts on the day on which it ended; ends appear "
        "after about 10 s. A job with several tags counts for each. `as=csv` answers a table.",
    )
    def get(self, request: Request) -> Any:
        return _answer(request, _tenant(request), self.ports.clock.now().date())


class TenantUsage(OperatorView):
    needs = {"GET": "jobs.view_tenant"}

    @described(
        "get_tenant_usage",
        "What a tenant used: ended jobs and GPU-seconds",
        answers={200: answers.Usage},
        refusals=(400, 403, 404),
        parameters=(TENANT, *PARAMETERS),
        tag="admin",
        description="As `GET /usage`, for any tenant.",
    )
    def get(self, request: Request, tenant: str) -> Any:
        return _answer(request, tenant_row(tenant), self.ports.clock.now().date())


def _tenant(request: Request) -> Tenant:
    """Raises AuthenticationFailed if it was deleted while its key is cached."""
    tenant = Tenant.objects.filter(pk=tenant_of(request)).first()
    if tenant is None:
        raise AuthenticationFailed(_DELETED)
    return tenant


def _answer(request: Request, tenant: Tenant, today: date) -> Any:
    allow_only(request, ("from", "to", "by", "as", "delimiter"))
    by = UsageBy(choice_parameter(request, "by", [one.value for one in UsageBy]) or UsageBy.DAY)
    last = _day(request, "to") or today
    first = _day(request, "from") or last - timedelta(days=DEFAULT_DAYS - 1)
    if not 0 <= (last - first).days < settings.DISPATCHER.usage_days:
        days = settings.DISPATCHER.usage_days
        raise parameter_problem("from", f"Must be a day up to `to`, at most {days - 1} days before it.")
    rows = usage(tenant.pk, first, last, by)
    delimiter = choice_parameter(request, "delimiter", [*DELIMITERS])
    if choice_parameter(request, "as", ("json", "csv")) == "csv":
        name = f"usage-{tenant.name}-{first}-{last}.csv"
        head = {"Content-Disposition": f'attachment; filename="{name}"'}
        text = as_csv(by.value, rows, delimiter or "comma")
        return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=head)
    said: answers.Usage = {
        "tenant": tenant.name,
        "from": first.isoformat(),
        "to": last.isoformat(),
        "by": by.value,
        "rows": [usage_json(row) for row in rows],
        "total": None if by is UsageBy.TAG else usage_json(total(rows)),
    }
    return Response(said)


def usage_json(row: UsageRow) -> answers.UsageRow:
    return {
        "key": row.key,
        "completed": row.completed,
        "failed": row.failed,
        "cancelled": row.cancelled,
        "gpu_seconds": round(row.gpu_seconds, 3),
    }


def _day(request: Request, name: str) -> date | None:
    """Raises Problem 400."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return read_day(text)
    except ValueError:
        raise parameter_problem(name, "Must be a day such as 2026-01-31.") from None
