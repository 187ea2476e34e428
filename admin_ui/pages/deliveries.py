"""Pages of callbacks: their messages, receivers and delivery log; buttons to send one again and to send a
test."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from admin_ui.actions.operations import MAX_AT_ONCE, actor, back_to, for_each
from admin_ui.parts.base_pages import HistoryAdmin, ReadOnlyInline, without_bodies
from admin_ui.parts.filters import MessageCreatedFilter
from admin_ui.parts.formatting import CALLBACK_LABELS, badge, follower_link, job_link, json_block
from admin_ui.parts.typed_decorators import column, operation
from foundation.http_client import MAX_URL_LENGTH
from jobs import ports
from jobs.callbacks.deliver import replay, send_sample
from jobs.callbacks.pick import delivery_report
from jobs.domain.errors import CallbackUrlRefused
from jobs.models import Callback, CallbackTry, Job, ReceiverCircuit, Tenant

_JOBS_SEARCHED = 200
"""A tenant's latest jobs that are searched for the callback URL it uses."""


class SampleForm(forms.Form):
    tenant = forms.ModelChoiceField(
        Tenant.objects.all(),
        to_field_name="name",
        widget=UnfoldAdminSelectWidget,
        help_text="The tenant whose secret signs the message.",
    )
    url = forms.CharField(
        label="URL",
        max_length=MAX_URL_LENGTH,
        widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "url", "placeholder": "https://…"}),
        help_text="Checked like every callback: only addresses that this dispatcher may call.",
    )


class SamplePage(HistoryAdmin):
    """Mixin of the callbacks' admin: the page that sends a test callback."""

    def get_urls(self) -> list[URLPattern]:
        return [*self.routes(("test/", self.sample, "jobs_callback_sample")), *super().get_urls()]

    def has_operate_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return bool(request.user.has_perm("jobs.change_callback"))

    def sample(self, request: HttpRequest) -> HttpResponse:
        """GET: the form, with `?tenant=` and the URL that the tenant used last. POST: send the message."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        outcome = None
        form = SampleForm(request.POST or None, initial=_suggested(request.GET.get("tenant", "")))
        if request.method == "POST" and form.is_valid():
            chosen = form.cleaned_data
            try:
                outcome = send_sample(
                    chosen["tenant"],
                    chosen["url"],
                    by=actor(request),
                    now=timezone.now(),
                    registry=ports.production_ports().registry,
                )
            except CallbackUrlRefused as refusal:
                form.add_error("url", str(refusal))
        context = {
            **self.admin_site.each_context(request),
            "title": "Send a test callback",
            "opts": self.opts,
            "form": form,
            "outcome": outcome,
        }
        return TemplateResponse(request, "admin_ui/sample.html", context)


def _suggested(tenant: str) -> dict[str, Any]:
    if not tenant:
        return {}
    latest = Job.objects.filter(tenant__name=tenant).order_by("-id").values_list("callback_url", flat=True)
    return {"tenant": tenant, "url": next((url for url in latest[:_JOBS_SEARCHED] if url), "")}


class TriesOfCallback(ReadOnlyInline):
    model = CallbackTry
    fields = ("number", "at", "status_code", "error", "duration_ms")
    verbose_name_plural = "delivery log"


@admin.register(Callback)
class CallbackPages(SamplePage):
    list_display = ("id", "state_label", "job_page", "url", "tries", "next_at", "created_at", "delivered_at")
    list_filter = (("state", ChoicesDropdownFilter), ("created_at", MessageCreatedFilter))
    search_fields = ("id__exact", "job__id__exact")
    search_help_text = "Exact match: a webhook-id or a job's id."
    ordering = ("-id",)
    sortable_by = ()
    heavy = ("body",)
    actions = ("replay_callbacks",)
    list_before_template = "admin_ui/callbacks/top.html"
    actions_list = ("send_test",)
    actions_detail = ("replay_one",)
    inlines = (TriesOfCallback,)
    fields = (
        ("id", "state_label"),
        ("job_page", "round"),
        "url",
        ("tries", "next_at"),
        ("created_at", "delivered_at"),
        "body_json",
    )
    readonly_fields = ("state_label", "job_page", "body_json")

    def get_urls(self) -> list[URLPattern]:
        return [
            *self.routes(("deliveries/", self.deliveries, "jobs_callback_deliveries")),
            *super().get_urls(),
        ]

    def deliveries(self, request: HttpRequest) -> HttpResponse:
        """The summary at the top of the list, as a fragment."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        report = delivery_report(ports.production_ports().clock.now())
        return TemplateResponse(request, "admin_ui/callbacks/deliveries.html", {"deliveries": report})

    @operation("Send a test", permissions=["operate"], icon="outgoing_mail")
    def send_test(self, request: HttpRequest) -> HttpResponse:
        return redirect(reverse("admin:jobs_callback_sample"))

    @operation("Send again", permissions=["operate"])
    def replay_callbacks(self, request: HttpRequest, queryset: QuerySet[Callback]) -> None:
        _send_again(request, list(queryset.order_by("pk").values_list("pk", flat=True)[: MAX_AT_ONCE + 1]))

    @operation(
        "Send again",
        permissions=["operate"],
        icon="replay",
        confirm=(
            "Send this callback again?",
            "It keeps its webhook-id; the retry schedule starts over.",
            "Send",
        ),
    )
    def replay_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        _send_again(request, [object_id])
        return back_to(request, reverse("admin:jobs_callback_change", args=[object_id]))

    @column("state")
    def state_label(self, callback: Callback) -> SafeString:
        return badge(callback.state, CALLBACK_LABELS)

    @column("job or run")
    def job_page(self, callback: Callback) -> SafeString | str:
        return follower_link(callback.subject) if callback.subject else job_link(callback.job_id or "")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return without_bodies(request, super().get_fields(request, obj))

    @column("body")
    def body_json(self, callback: Callback) -> SafeString | str:
        return json_block(json.loads(callback.body))


@admin.register(ReceiverCircuit)
class ReceiverPages(HistoryAdmin):
    """Circuit breakers of receivers that did not answer, by tenant."""

    noun = ("receiver", "receivers")
    about = "Receivers of callbacks that do not answer. Their circuit closes with the first answer."
    list_display = ("receiver", "tenant", "failures", "failed_at", "resting_until", "last_error")
    list_select_related = ("tenant",)
    ordering = ("-id",)
    sortable_by = ()


@admin.register(CallbackTry)
class CallbackTryPages(HistoryAdmin):
    noun = ("delivery", "delivery log")
    about = "Every request that delivered, or tried to deliver, a callback."
    list_display = ("callback_id", "number", "at", "status_code", "error", "duration_ms")
    search_fields = ("callback__id__exact",)
    search_help_text = "Exact match of a webhook-id."
    ordering = ("-id",)
    sortable_by = ()


def _send_again(request: HttpRequest, ids: list[str]) -> None:
    real = ports.production_ports()

    def send(callback_id: str) -> str:
        sent = replay(callback_id, now=real.clock.now(), by=actor(request))
        return "due again" if sent else "no longer there"

    for_each(request, ids, send)
    real.wake_callbacks(ids[:MAX_AT_ONCE])
