"""The start page: how it stands, in one look; each part only to who may see it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from admin_ui.dashboard.pages import QUEUES, pause_of_system, require, window_of
from admin_ui.pages.navigation import tidy_index
from gpus.models import QuarantinedSlot, Server
from jobs import ports
from jobs.domain.states import JobState
from jobs.models import DEAD_LETTER, Job
from jobs.reports.fleet import fleet_snapshot
from jobs.reports.history import WINDOWS
from jobs.reports.queue_report import queue_snapshot
from jobs.sweeps import TICK, sweep_ages

MOST_RETRYING = 1000
MOST_DEAD_LETTERS = 1000
"""More are not counted out."""
_FAILURES_SHOWN = 6
_SERVERS_SHOWN = 40
_BEAT_SILENT_SECONDS = 10.0


def start_page(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """For `UNFOLD`: what the start page shows."""
    return overview(request) | tidy_index(request, context)


def overview(request: HttpRequest) -> dict[str, Any]:
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
            "sick": Server.objects.filter(healthy=False).exclude(desired="off").count(),
            "quarantined": QuarantinedSlot.objects.filter(freed_at=None).count(),
        }
    if request.user.has_perms(QUEUES):
        failed = Job.objects.filter(DEAD_LETTER).order_by("-finished_at")
        context |= {
            "queues": queue_snapshot(leases, now, recent, with_shares=False),
            "dead_letters": failed.order_by()[: MOST_DEAD_LETTERS + 1].count(),
            "most_dead_letters": MOST_DEAD_LETTERS,
            "retrying": retrying_jobs(),
            "failures": failed.values("id", "model", "error_code", "finished_at")[:_FAILURES_SHOWN],
        }
    context["clocks"] = ports.clock_report()
    tick = sweep_ages().get(TICK)
    context["silent_beat_seconds"] = tick if tick is not None and tick > _BEAT_SILENT_SECONDS else None
    return context


@dataclass(frozen=True, slots=True)
class Retrying:
    """Jobs between two attempts: `MOST_RETRYING` at most are counted. top_error: their most frequent code."""

    count: int
    top_error: str


def retrying_jobs() -> Retrying:
    waiting = Job.objects.filter(state=JobState.RETRYING.value).order_by("due_at")
    codes = Counter(waiting.values_list("error_code", flat=True)[:MOST_RETRYING])
    return Retrying(codes.total(), max(codes, key=codes.__getitem__, default=""))


def overview_part(request: HttpRequest) -> HttpResponse:
    part = request.GET.get("part")
    if part not in ("now", "charts"):
        raise Http404
    if part == "charts":
        require(request, *QUEUES)
    return TemplateResponse(request, f"admin_ui/dashboard/parts/{part}.html", overview(request))
