"""The usage page: GPU-seconds and ended jobs of all tenants, or of one by day, model or tag."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from admin_ui.dashboard.charts import HEIGHT, WIDTH
from admin_ui.dashboard.pages import require
from admin_ui.parts.formatting import seconds
from jobs.models import Tenant
from jobs.reports.usage import DEFAULT_DAYS, DELIMITERS, UsageBy, UsageRow, as_csv, total, usage, usage_of_all

RANGES = {7: "7 days", 30: "30 days", 90: "90 days", 365: "1 year"}
PERMISSIONS = ("jobs.view_tenant",)


def usage_page(request: HttpRequest) -> HttpResponse:
    """Show usage. Parameters: tenant (name; empty: all), by, days (of `RANGES`), as (csv for a download),
    delimiter (of it)."""
    require(request, *PERMISSIONS)
    days = (
        int(request.GET.get("days", "")) if request.GET.get("days", "") in map(str, RANGES) else DEFAULT_DAYS
    )
    last = timezone.now().date()
    first = last - timedelta(days=days - 1)
    name = request.GET.get("tenant", "")
    tenant = Tenant.objects.filter(name=name).first() if name else None
    if name and tenant is None:
        raise Http404
    by = (
        UsageBy(request.GET["by"]) if request.GET.get("by") in [one.value for one in UsageBy] else UsageBy.DAY
    )
    per_tenant = usage_of_all(first, last)
    rows = per_tenant if tenant is None else usage(tenant.pk, first, last, by)
    if request.GET.get("as") == "csv":
        head = {"Content-Disposition": f'attachment; filename="usage-{name or "tenants"}-{first}-{last}.csv"'}
        title = "tenant" if tenant is None else by.value
        delimiter = request.GET.get("delimiter", "")
        text = as_csv(title, rows, delimiter if delimiter in DELIMITERS else "comma")
        return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=head)
    context: dict[str, Any] = {
        "here": "usage",
        "title": "Usage",
        "tenant": tenant,
        "tenants": Tenant.objects.values_list("name", flat=True),
        "rows": sorted(rows, key=lambda row: -row.gpu_seconds)
        if tenant is None or by != UsageBy.DAY
        else rows,
        "total": None if tenant is not None and by is UsageBy.TAG else total(rows),
        "by": by,
        "bys": list(UsageBy),
        "days": days,
        "ranges": RANGES,
        "first": first,
        "last": last,
        "chart": _chart(usage(tenant.pk, first, last, UsageBy.DAY), first, days)
        if tenant is not None
        else "",
    }
    return TemplateResponse(
        request, "admin_ui/dashboard/usage.html", admin.site.each_context(request) | context
    )


def _chart(rows: list[UsageRow], first: date, days: int) -> SafeString:
    """Draw GPU-seconds per day as bars; `aria-label` sums them up."""
    by_day = {row.key: row for row in rows}
    top = max((row.gpu_seconds for row in rows), default=0.0) or 1.0
    bars, hints = [], []
    for place in range(days):
        day = (first + timedelta(days=place)).isoformat()
        if (row := by_day.get(day)) is None:
            continue
        height = row.gpu_seconds / top * HEIGHT
        bars.append((f"{place * WIDTH:.1f}", f"{HEIGHT - height:.2f}", f"{WIDTH * 0.8:.1f}", f"{height:.2f}"))
        hints.append((f"{place * WIDTH:.1f}", WIDTH, HEIGHT, day, seconds(row.gpu_seconds), row.completed))
    return format_html(
        '<svg class="drawing" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}{}</svg>",
        days * WIDTH,
        HEIGHT,
        f"GPU time per day: {seconds(total(rows).gpu_seconds)} in {days} days",
        format_html_join(
            "", '<rect class="bar-completed" fill="currentColor" x="{}" y="{}" width="{}" height="{}"/>', bars
        ),
        format_html_join(
            "",
            '<rect class="hint" x="{}" y="0" width="{}" height="{}">'
            "<title>{}: {} GPU time, {} jobs completed</title></rect>",
            hints,
        ),
    )
