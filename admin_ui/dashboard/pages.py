"""The pages Overview (the start page), Fleet and Queues. Each part needs its own permission. The same URL
with ``?part=`` returns one live part as an HTML fragment."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from admin_ui.dashboard.labels import SWITCHES
from admin_ui.pages.navigation import tidy_index
from gpus.models import Pause, Pool, QuarantinedSlot, Server
from gpus.registry.queries import pauses
from gpus.reports import CellState
from jobs import ports
from jobs.domain.states import JobState
from jobs.events.handover import PULSE_HEADER, offered
from jobs.models import ACTIONABLE, CLIENT_ERROR, DEAD_LETTER, Job
from jobs.reports.fleet import SERVERS_PER_PAGE, fleet_snapshot
from jobs.reports.history import WINDOWS, Window
from jobs.reports.jobs import named
from jobs.reports.queue_report import QueueSnapshot, queue_snapshot
from jobs.sweeps.base import TICK, sweep_ages
from workflows.domain.plan import NodeKind
from workflows.models import Run, Wait

QUEUES = ("gpus.view_modelconfig", "jobs.view_job")
"""Permissions that queues need: they show models and jobs."""


def fleet_page(request: HttpRequest) -> HttpResponse:
    """The page Fleet. Query: pool, q (part of a name), troubled=1 (only problems), p (page), part."""
    require(request, "gpus.view_server")
    page = request.GET.get("p", "0")
    asked: dict[str, Any] = {
        "pool": request.GET.get("pool", ""),
        "search": request.GET.get("q", "").strip()[:64],
        "troubled": request.GET.get("troubled") == "1",
        "page": int(page) if page.isdecimal() and len(page) < 6 else 0,
    }
    first = asked["page"] * SERVERS_PER_PAGE
    leases = ports.production_ports().leases
    snapshot = fleet_snapshot(leases, timezone.now(), per_page=SERVERS_PER_PAGE, **asked)
    context = {
        "here": "fleet",
        "fleet": snapshot,
        "asked": asked,
        "page_query": _query(request),
        "previous_page": _query(request, p=asked["page"] - 1) if asked["page"] else "",
        "next_page": _query(request, p=asked["page"] + 1)
        if first + len(snapshot.rows) < snapshot.total
        else "",
        "first": first + 1,
        "last": first + len(snapshot.rows),
        "pools": list(Pool.objects.values_list("name", flat=True)),
        "states": [(state, sum(row.count(state) for row in snapshot.rows)) for state in CellState],
        "switches": [(state.value, *texts) for state, texts in SWITCHES.items()],
        "may_see_jobs": request.user.has_perm("jobs.view_job"),
        "may_switch": request.user.has_perm("gpus.change_server"),
        **pause_of_system(request),
    }
    return _page_or_part(request, "fleet", context, parts=["servers"])


def queues_page(request: HttpRequest) -> HttpResponse:
    """The page Queues. Query: window (1h, 24h or 7d), part."""
    require(request, *QUEUES)
    window, now = window_of(request), timezone.now()
    real = ports.production_ports()
    past = real.recent_history(window, now)
    snapshot = queue_snapshot(real.leases, now, past)
    context = {
        "here": "queues",
        "queues": snapshot,
        "pools": list(snapshot.shares.items()),
        "paused_ids": {int(one.name) for one in snapshot.tenant_pauses if one.name.isdecimal()},
        "tenants": _paused_tenants(snapshot),
        "may_pause_model": request.user.has_perm("gpus.change_modelconfig"),
        "may_pause_tenant": request.user.has_perm("jobs.change_tenant"),
        **pause_of_system(request),
        "every": past.all_models(),
        "begin": past.begin,
        "window": window,
        "windows": list(WINDOWS.values()),
    }
    return _page_or_part(request, "queues", context, parts=["queues", "charts"])


def pulse(request: HttpRequest) -> HttpResponse:
    """The event stream that signals changes. Under plain WSGI there is none (204), and the browser polls."""
    if not offered(request.environ):  # type: ignore[attr-defined]
        return HttpResponse(status=204)
    return HttpResponse(headers={PULSE_HEADER: "1"})


def window_of(request: HttpRequest) -> Window:
    """Return the time range of `?window=`; default: the last hour."""
    return WINDOWS.get(request.GET.get("window", "1h"), WINDOWS["1h"])


def pause_of_system(request: HttpRequest) -> dict[str, Any]:
    """Return the template context of the notice about a paused system."""
    return {
        "system_pause": next((one for one in pauses() if one.kind == Pause.Kind.SYSTEM), None),
        "may_pause_system": request.user.has_perm("gpus.add_pause"),
    }


def require(request: HttpRequest, *permissions: str) -> None:
    """Raise PermissionDenied if the user lacks one of the permissions."""
    if not request.user.has_perms(permissions):
        raise PermissionDenied


def _page_or_part(
    request: HttpRequest, page: str, context: dict[str, Any], *, parts: list[str]
) -> HttpResponse:
    part = request.GET.get("part")
    if part is None:
        shared = admin.site.each_context(request) | {"title": page.capitalize()}
        return TemplateResponse(request, f"admin_ui/dashboard/{page}.html", shared | context)
    if part not in parts:
        raise Http404
    return TemplateResponse(request, f"admin_ui/dashboard/parts/{part}.html", context)


def _query(request: HttpRequest, **changed: int) -> str:
    """The query string of this page without ``part``, with the changed values."""
    query = request.GET.copy()
    query.pop("part", None)
    for name, value in changed.items():
        query[name] = str(value)
    return query.urlencode()


def _paused_tenants(snapshot: QueueSnapshot) -> list[dict[str, Any]]:
    return [
        {"pk": pause.name, "name": name, "pause": pause}
        for pause, name in named(snapshot.tenant_pauses)
        if pause.name.isdecimal()
    ]


MAX_RETRYING = 1000
MAX_DEAD_LETTERS = 1000
MAX_RUNS = 1000
"""Rows are counted up to here; more are shown as ``1000+``."""
_FAILURES_SHOWN = 6
_SERVERS_SHOWN = 40
_BEAT_SILENT_SECONDS = 10.0


def start_page(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Return the template context of the start page, for `UNFOLD`."""
    return overview(request) | tidy_index(request, context)


def overview(request: HttpRequest) -> dict[str, Any]:
    """Return the template context of the overview, as far as the user may see it."""
    window, now = window_of(request), timezone.now()
    real = ports.production_ports()
    past = real.recent_history(window, now)
    recent = past if window.name == "1h" else real.recent_history(WINDOWS["1h"], now)
    context: dict[str, Any] = {
        "here": "overview",
        "every": past.all_models(),
        "last_hour": recent.all_models(),
        "begin": past.begin,
        "window": window,
        "windows": list(WINDOWS.values()),
        **pause_of_system(request),
    }
    leases = real.leases
    if request.user.has_perm("gpus.view_server"):
        fleet = fleet_snapshot(leases, now)
        context |= {
            "fleet": fleet,
            "shown": fleet.rows[:_SERVERS_SHOWN],
            "unhealthy": Server.objects.filter(healthy=False).exclude(desired="off").count(),
            "quarantined": QuarantinedSlot.objects.filter(freed_at=None).count(),
        }
    if request.user.has_perms(QUEUES):
        failed = Job.objects.filter(ACTIONABLE).order_by("-finished_at")
        client_errors = Job.objects.filter(DEAD_LETTER & CLIENT_ERROR)
        context |= {
            "queues": queue_snapshot(leases, now, recent, with_shares=False),
            "dead_letters": failed.order_by()[: MAX_DEAD_LETTERS + 1].count(),
            "most_dead_letters": MAX_DEAD_LETTERS,
            "client_errors": client_errors.filter(finished_at__gte=now - timedelta(hours=1))[
                : MAX_DEAD_LETTERS + 1
            ].count(),
            "retrying": retrying_jobs(),
            "failures": failed.values("id", "model", "error_code", "error_message", "finished_at")[
                :_FAILURES_SHOWN
            ],
        }
    if request.user.has_perm("workflows.view_run"):
        questions = Wait.objects.filter(kind=NodeKind.HUMAN.value, answered_at=None)
        context |= {
            "live_runs": Run.objects.filter(finished_at=None).order_by()[: MAX_RUNS + 1].count(),
            "questions": questions.order_by()[: MAX_RUNS + 1].count(),
            "most_runs": MAX_RUNS,
        }
    context["clocks"] = real.clock_watch.report()
    tick = sweep_ages(real.clock.now()).get(TICK)
    context["silent_beat_seconds"] = tick if tick is not None and tick > _BEAT_SILENT_SECONDS else None
    return context


@dataclass(frozen=True, slots=True)
class Retrying:
    """Jobs between two attempts. count: at most `MAX_RETRYING`. top_error: their most frequent error
    code."""

    count: int
    top_error: str


def retrying_jobs() -> Retrying:
    """Count the retrying jobs and their error codes."""
    waiting = Job.objects.filter(state=JobState.RETRYING.value).order_by("due_at")
    codes = Counter(waiting.values_list("error_code", flat=True)[:MAX_RETRYING])
    return Retrying(codes.total(), max(codes, key=codes.__getitem__, default=""))


def overview_part(request: HttpRequest) -> HttpResponse:
    """A live part of the overview. Query: part (now or charts), window."""
    part = request.GET.get("part")
    if part not in ("now", "charts"):
        raise Http404
    if part == "charts":
        require(request, *QUEUES)
    return TemplateResponse(request, f"admin_ui/dashboard/parts/{part}.html", overview(request))
