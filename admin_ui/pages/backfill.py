"""The page *Backfill*: the due times of a span are counted, and then started again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from unfold.widgets import UnfoldAdminTextInputWidget, UnfoldBooleanSwitchWidget

from admin_ui.actions.operations import actor
from admin_ui.parts.base_pages import OperatorAdmin
from admin_ui.parts.submit_form import new_key
from admin_ui.parts.typed_decorators import operation
from foundation.moments import read_moment
from jobs import ports
from jobs.domain.errors import Refused
from workflows.schedules.models import Schedule
from workflows.schedules.operations.backfill import Backfilled, backfill
from workflows.schedules.operations.request_keys import RequestKey

DUES_LISTED = 5
"""Due times listed at each end of the span."""


class MomentField(forms.CharField):
    """A time as people type it. ahead: a span such as 2h is from now on, else that long ago."""

    widget = UnfoldAdminTextInputWidget

    def __init__(self, *, ahead: bool = False, **kwargs: Any) -> None:
        super().__init__(max_length=40, **kwargs)
        self.ahead = ahead

    def clean(self, value: Any) -> datetime | None:
        text = super().clean(value)
        try:
            now = ports.production_ports().clock.now()
            return read_moment(text, now, ahead=self.ahead) if text else None
        except (ValueError, OverflowError) as error:
            raise forms.ValidationError(str(error)) from None


class BackfillForm(forms.Form):
    """A span of due times."""

    begin = MomentField(
        label="From", help_text="First due time, such as 2026-02-01T00:00 (UTC), or 2h, 7d for that long ago."
    )
    end = MomentField(label="To", help_text="Last due time, the same; empty: now.", required=False)
    parallel = forms.BooleanField(
        label="In parallel",
        required=False,
        widget=UnfoldBooleanSwitchWidget,
        help_text="Do not wait for each other: needed if runs wait for people.",
    )

    def add_refusal(self, refused: Refused) -> None:
        """Show a refusal at its field."""
        name = {"/from": "begin", "/to": "end"}.get(refused.pointer or "")
        self.add_error(name, str(refused))


class BackfillPage(OperatorAdmin):
    """Mixin of the schedules' admin."""

    @operation("Backfill…", permissions=["change_rows"], icon="history")
    def backfill_one(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """GET: the form, and with a span its due times. POST: start them."""
        schedule: Schedule | None = self.get_object(request, object_id)
        if schedule is None:
            raise Http404
        context: dict[str, Any] = {}
        sent = request.POST if request.method == "POST" else request.GET
        form = BackfillForm(sent or None)
        if form.is_valid():
            try:
                found = _backfill(schedule, form, request)
            except Refused as refused:
                form.add_refusal(refused)
            else:
                if request.method == "POST":
                    messages.success(request, f"{len(found.dues)} due times are started again, oldest first.")
                    return redirect(reverse("admin:schedules_schedule_change", args=[object_id]))
                context = _counted(found)
        context |= {
            **self.admin_site.each_context(request),
            "title": "Backfill",
            "opts": self.opts,
            "schedule": schedule,
            "form": form,
        }
        return TemplateResponse(request, "admin_ui/schedule/backfill.html", context)


def _backfill(schedule: Schedule, form: BackfillForm, request: HttpRequest) -> Backfilled:
    """Count the due times of a span by GET, start them by POST. Raises Refused."""
    real, by = ports.production_ports(), actor(request)
    return backfill(
        schedule,
        form.cleaned_data["begin"],
        form.cleaned_data["end"] or real.clock.now(),
        parallel=form.cleaned_data["parallel"],
        dry_run=request.method != "POST",
        idempotency_key=RequestKey(request.POST.get("key") or new_key()),
        by=by,
        operator=by,
        ports=real,
    )


def _counted(found: Backfilled) -> dict[str, Any]:
    """Return the due times of a span for the page. The form that starts them names the first and the last
    one, since a span such as 2h would be another one by then."""
    dues = found.dues
    is_long = len(dues) > 2 * DUES_LISTED
    return {
        "count": len(dues),
        "first": dues[0].isoformat(),
        "last": dues[-1].isoformat(),
        "begin_listed": dues[:DUES_LISTED] if is_long else dues,
        "end_listed": dues[-DUES_LISTED:] if is_long else [],
        "key": new_key(),
    }
