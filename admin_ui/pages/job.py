"""A job's own page: its course, live while it runs, what went in and what came out."""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone

from admin_ui.pages import job_story
from admin_ui.parts.media import SHOWN_TYPES
from admin_ui.parts.payloads import sees_payloads
from admin_ui.parts.read_only import HistoryAdmin
from admin_ui.parts.viewer import show_json
from jobs.api.representations import job_json
from jobs.models import Job

_BIG = ("payload", "result", "metadata")
_STATIC_ONLY = "default-src 'none'; sandbox"


class JobDetail(HistoryAdmin):
    """Instead of Django's change form."""

    def get_urls(self) -> list[URLPattern]:
        ours = (
            ("<str:job_id>/live/", self.live, "jobs_job_live"),
            ("<str:job_id>/raw/<str:name>/", self.raw, "jobs_job_raw"),
            ("<str:job_id>/media/<str:name>/<int:place>/", self.media_of, "jobs_job_media"),
        )
        views = [path(route, self.admin_site.admin_view(view), name=name) for route, view, name in ours]
        return [*views, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        self._require_view(request)
        if request.method not in ("GET", "HEAD"):
            raise PermissionDenied  # only services move a job
        job = self._find(object_id)
        if job is None:
            gone: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
            return gone
        context = {
            **self.admin_site.each_context(request),
            **self._page(request, job),
            "title": f"Job {job.id}",
            "opts": self.opts,
            "original": job,
        }
        return TemplateResponse(request, "admin_ui/job/page.html", context)

    def live(self, request: HttpRequest, job_id: str) -> HttpResponse:
        """The course anew; the rest too where an event came since `?seq=`."""
        self._require_view(request)
        job = self._job(job_id, *_BIG)
        context = self._course(request, job)
        templates = ["admin_ui/job/live.html"]
        if request.GET.get("seq") != str(job.event_seq):
            context = {**self._page(request, self._job(job_id)), "swapped": True}
            templates = ["admin_ui/job/news.html"]
        return TemplateResponse(request, templates, context)

    def raw(self, request: HttpRequest, job_id: str, name: str) -> HttpResponse:
        """payload, result, metadata, or the whole job: as JSON to keep."""
        self._require_view(request)
        job, may_see = self._job(job_id), sees_payloads(request)
        if name in ("payload", "result") and not may_see:
            raise PermissionDenied
        known = {"payload": job.payload, "result": job.result, "metadata": job.metadata}
        if name != "job" and name not in known:
            raise Http404
        body = json.dumps(
            job_json(job, with_result=may_see, in_full=True) if name == "job" else known[name], indent=1
        )
        return HttpResponse(
            body,
            content_type="application/json",
            headers={"Content-Disposition": f'attachment; filename="{job.id}-{name}.json"'},
        )

    def media_of(self, request: HttpRequest, job_id: str, name: str, place: int) -> HttpResponse:
        """What is embedded there, as a file of its own type; what a browser might run comes as a download."""
        self._require_view(request)
        if not sees_payloads(request):
            raise PermissionDenied
        job = self._job(job_id, *(field for field in _BIG if field != name))
        media = job_story.embedded(job, name, place, host=request.get_host())
        if media is None:
            raise Http404
        try:
            content = media.decoded()
        except ValueError:
            raise Http404 from None
        shown = media.content_type in SHOWN_TYPES
        return HttpResponse(
            content,
            content_type=media.content_type if shown else "application/octet-stream",
            headers={
                "Content-Disposition": "inline" if shown else f'attachment; filename="{job_id}-{place}"',
                "Content-Security-Policy": _STATIC_ONLY,
                "X-Content-Type-Options": "nosniff",
                "Cache-Control": "private, max-age=3600",
            },
        )

    def _course(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        allowed = self.get_actions_detail(request, job.id)
        buttons = self._get_actions_navigation(self.actions_detail, allowed, job.id)
        return {
            "job": job,
            "course": job_story.course(job, now=timezone.now()),
            "buttons": buttons,
            "why": job_story.why(job),
        }

    def _page(self, request: HttpRequest, job: Job) -> dict[str, Any]:
        context, may_see = self._course(request, job), sees_payloads(request)
        return context | {
            "values": job_story.values(job, host=request.get_host()) if may_see else [],
            "payloads_hidden": not may_see,
            "metadata": show_json(job.metadata),
            "steps": job_story.steps(job, context["course"].events, with_output=may_see),
            "callbacks": job_story.callbacks(job),
            "raw": show_json(job_story.as_clients_read_it(job)),
        }

    def _find(self, job_id: str, *left_out: str) -> Job | None:
        return Job.objects.select_related("tenant").defer(*left_out).filter(id=job_id).first()

    def _job(self, job_id: str, *left_out: str) -> Job:
        job = self._find(job_id, *left_out)
        if job is None:
            raise Http404
        return job

    def _require_view(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied
