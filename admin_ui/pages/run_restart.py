"""The page *Restart nodes*: chosen nodes of a run that has ended run again, with all nodes after them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse

from admin_ui.actions.operations import actor
from admin_ui.actions.run_actions import RunActions
from admin_ui.parts.row_page import RowPage
from foundation.http_api.problems import Problem
from jobs import ports
from jobs.domain.errors import Refused
from workflows.models import Run
from workflows.operations.restart import nodes_of_restart, restart_run
from workflows.reports.graph import plan_of


class RestartPage(RunActions, RowPage):
    """Mixin of the runs' admin. A form names the round that its reader saw: one from before another restart
    restarts nothing."""

    def get_urls(self) -> list[URLPattern]:
        views = self.routes(("<str:run_id>/restart/", self.restart, "workflows_run_restart"))
        return [*views, *super().get_urls()]

    def restart(self, request: HttpRequest, run_id: str) -> HttpResponse:
        """GET: all nodes to choose from. POST: restart `nodes`; without them, show what would run again."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        run: Run = self.row_or_404(run_id)
        page = redirect(reverse("admin:workflows_run_change", args=[run_id]))
        if request.method != "POST":
            if self.may_choose_nodes(request, run_id):
                return self._choose(request, run)
            messages.warning(request, "The run can't be restarted now.")
            return page
        if request.POST.get("round") != str(run.round):
            messages.warning(request, "The run was restarted meanwhile. Look at it as it is now.")
            return page
        is_confirmed = "nodes" in request.POST
        keys = request.POST["nodes"].split() if is_confirmed else request.POST.getlist("node")
        try:
            if not keys:
                return self._choose(request, run, "Choose at least one node.")
            if not is_confirmed:
                return self._confirm(request, run, keys)
            restart_run(run.id, keys=keys, by=actor(request), ports=ports.production_ports())
        except (Refused, Problem) as refusal:
            messages.error(request, str(refusal))
        else:
            messages.success(request, "The chosen nodes run again.")
        return page

    def _choose(self, request: HttpRequest, run: Run, error: str = "") -> HttpResponse:
        nodes = [(key, run.node_states.get(key, "")) for key in plan_of(run).nodes]
        return self._show(request, run, "Restart nodes", nodes=nodes, error=error)

    def _confirm(self, request: HttpRequest, run: Run, keys: list[str]) -> HttpResponse:
        again = nodes_of_restart(run, keys)
        chosen = [key for key in again if key in set(keys)]
        after = [key for key in again if key not in set(keys)]
        return self._show(request, run, "Restart these nodes?", chosen=chosen, after=after)

    def _show(self, request: HttpRequest, run: Run, title: str, **context: Any) -> HttpResponse:
        context |= {**self.admin_site.each_context(request), "title": title, "opts": self.opts, "run": run}
        return TemplateResponse(request, "admin_ui/run/restart.html", context)
