"""A server's own page: slots with their runs, the last hour or day, attempts and failures, above the form."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils import timezone

from admin_ui.dashboard.labels import SWITCHES
from admin_ui.dashboard.pages import pause_of_system, require
from admin_ui.dashboard.server_charts import (
    DAY,
    HOUR,
    WINDOWS,
    Point,
    Window,
    axis_times,
    bars_of,
    curves,
    listed_loads,
    points_of_readings,
    points_of_summaries,
    run_lanes,
)
from admin_ui.parts.live import LiveAdmin
from gpus.errors import LeasingUnavailable
from gpus.models import Server
from jobs import ports
from jobs.reports.fleet import server_snapshot
from jobs.reports.server import DayRuns, failures_by_cause, latest_runs, runs_of_day

RUNS_LISTED = 20


class ServerOverview(LiveAdmin):
    """Mixin of `admin_ui.pages.servers.ServerPages`: the live parts of a server's page, each loaded by
    itself."""

    change_form_template = "admin_ui/servers/page.html"

    def get_urls(self) -> list[URLPattern]:
        parts = (("now", self.now_part), ("charts", self.charts_part), ("runs", self.runs_part))
        views = ((f"<str:name>/{part}/", view, f"gpus_server_{part}") for part, view in parts)
        return [*self.routes(*views), *super().get_urls()]

    def now_part(self, request: HttpRequest, name: str) -> HttpResponse:
        """State, controls, and slots with their runs."""
        self._require_view(request)
        now = timezone.now()
        fleet = server_snapshot(name, ports.production_ports().leases, now)
        if fleet is None:
            raise Http404
        [row] = fleet.rows
        context = {
            "fleet": fleet,
            "row": row,
            "is_own_page": True,
            "switches": [(state.value, *texts) for state, texts in SWITCHES.items()],
            "may_see_jobs": request.user.has_perm("jobs.view_job"),
            "may_switch": request.user.has_perm("gpus.change_server"),
            **pause_of_system(request),
        }
        return TemplateResponse(request, "admin_ui/servers/now.html", context)

    def runs_part(self, request: HttpRequest, name: str) -> HttpResponse:
        """The latest attempts, and the failures among them by cause."""
        server = self._server(request, name)
        require(request, "jobs.view_job")
        runs = latest_runs(name, server.slots, timezone.now())
        context = {
            "server": server,
            "runs": runs[:RUNS_LISTED],
            "run_count": len(runs),
            "causes": failures_by_cause(runs),
        }
        return TemplateResponse(request, "admin_ui/servers/runs.html", context)

    def charts_part(self, request: HttpRequest, name: str) -> HttpResponse:
        """Charts of the last hour or day: runs by slot, and telemetry if a pinned worker sends any. Query:
        window (1h or 24h)."""
        server = self._server(request, name)
        now = timezone.now()
        window = WINDOWS.get(request.GET.get("window", HOUR.name), HOUR)
        may_see_jobs = request.user.has_perm("jobs.view_job")
        found = _runs(server, now, window) if may_see_jobs else DayRuns([], None)
        bars = bars_of(found.runs, server.slots, now, window)
        points = _points(server, window)
        context: dict[str, Any] = {
            "server": server,
            "window": window,
            "windows": list(WINDOWS.values()),
            "times": axis_times(now, window),
            "may_see_jobs": may_see_jobs,
            "lanes": run_lanes(bars, server.slots, now, window),
            "runs_since": found.since,
            "curves": curves(points or [], bars, window),
            "loads": listed_loads(points or [], now, window),
            "is_away": points is None,
        }
        return TemplateResponse(request, "admin_ui/servers/charts.html", context)

    def _require_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _server(self, request: HttpRequest, name: str) -> Server:
        self._require_view(request)
        server = Server.objects.select_related("pool").filter(name=name).first()
        if server is None:
            raise Http404
        return server


def _runs(server: Server, now: datetime, window: Window) -> DayRuns:
    if window is DAY:
        return runs_of_day(server.name, server.slots, now)
    return DayRuns(latest_runs(server.name, server.slots, now), None)


def _points(server: Server, window: Window) -> list[Point] | None:
    """The telemetry of the window; none for a server without a pinned worker; None without Redis."""
    if not server.host:
        return []
    try:
        leases = ports.production_ports().leases(server.pool.fleet)
        if window is DAY:
            return points_of_summaries(leases.telemetry_summaries(server.name, window.seconds), window)
        return points_of_readings(leases.telemetry(server.name, window.seconds), window)
    except LeasingUnavailable:
        return None
