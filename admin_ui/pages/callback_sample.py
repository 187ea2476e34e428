"""The page that sends a test callback and shows what the receiver said."""

from __future__ import annotations

from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from admin_ui.actions.operations import actor
from admin_ui.parts.read_only import HistoryAdmin
from jobs.callbacks.guard import MAX_URL_LENGTH
from jobs.callbacks.sample import send_sample
from jobs.domain.errors import CallbackUrlRefused
from jobs.models import Job, Tenant

_LOOKED_AT = 200
"""Of a tenant's latest jobs, for the address it uses."""


class SampleForm(forms.Form):
    tenant = forms.ModelChoiceField(
        Tenant.objects.all(),
        to_field_name="name",
        widget=UnfoldAdminSelectWidget,
        help_text="Whose secret signs it.",
    )
    url = forms.CharField(
        label="URL",
        max_length=MAX_URL_LENGTH,
        widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "url", "placeholder": "https://…"}),
        help_text="Guarded like every callback: only addresses that this dispatcher may call.",
    )


class SamplePage(HistoryAdmin):
    """A page of the callbacks' admin."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.sample)
        return [path("test/", view, name="jobs_callback_sample"), *super().get_urls()]

    def has_operate_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return bool(request.user.has_perm("jobs.change_callback"))

    def sample(self, request: HttpRequest) -> HttpResponse:
        """By GET the form, filled in with `?tenant=` and the address it used last; by POST it is sent."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        outcome = None
        form = SampleForm(request.POST or None, initial=_suggested(request.GET.get("tenant", "")))
        if request.method == "POST" and form.is_valid():
            chosen = form.cleaned_data
            try:
                outcome = send_sample(chosen["tenant"], chosen["url"], by=actor(request), now=timezone.now())
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
    return {"tenant": tenant, "url": next((url for url in latest[:_LOOKED_AT] if url), "")}
