"""Pages of schedules: their next fire times, a strip of two days, the last firings, and the actions trigger,
backfill, cancel of backfills, pause and resume. Clients store schedules through the API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.forms import ActionForm, BaseDialogForm
from unfold.widgets import UnfoldAdminTextInputWidget

from admin_ui.actions.operations import actor, back_to
from admin_ui.pages.backfill import BackfillPage, MomentField
from admin_ui.pages.calendar_strip import calendar_strip
from admin_ui.parts.base_pages import HistoryAdmin, ReadOnlyAdmin, sees_payloads
from admin_ui.parts.formatting import badge, job_link, json_block, list_link, page_link, run_link, tenant_link
from admin_ui.parts.submit_form import new_key
from admin_ui.parts.typed_decorators import column, operation
from jobs import ports
from jobs.domain.errors import Refused
from workflows.schedules.backlog import backlog_of
from workflows.schedules.execution.fire import is_paused
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.backfill import cancel_backfills
from workflows.schedules.operations.fire_times import fire_times, shown_next_due_at, times_in_words
from workflows.schedules.operations.pause import is_ahead, pause_schedule, resume_schedule
from workflows.schedules.operations.request_keys import RequestKey
from workflows.schedules.operations.trigger import trigger

SHOWN = 10
OUTCOME_LABELS = {"started": "success", "waiting": "info", "skipped": "warning", "missed": "danger"}
STATE_LABELS = {"active": "success", "paused": "warning", "error": "danger"}


def state_of(schedule: Schedule, now: datetime) -> str:
    """Return active, paused, error or ended."""
    if schedule.error_code:
        return "error"
    if is_paused(schedule, now):
        return "paused"
    return "active" if schedule.next_at is not None else "ended"


def _now() -> datetime:
    return ports.production_ports().clock.now()


class PauseForm(BaseDialogForm):  # type: ignore[misc]
    """How long to pause, and why."""

    until = MomentField(
        required=False,
        ahead=True,
        help_text="When it goes on by itself: 2026-02-01T00:00 (UTC), or 2h, 7d from now. Empty: when it is "
        "resumed.",
    )
    reason = forms.CharField(required=False, max_length=200, widget=UnfoldAdminTextInputWidget)

    def clean_until(self) -> datetime | None:
        until: datetime | None = self.cleaned_data["until"]
        if until is not None and until <= _now():
            raise forms.ValidationError("This time has passed.")
        return until


class TriggerForm(BaseDialogForm):  # type: ignore[misc]
    """key: makes a second click harmless."""

    key = forms.CharField(widget=forms.HiddenInput, max_length=64, initial=new_key)


class KeyedActionForm(ActionForm):  # type: ignore[misc]
    """Actions of the list. key: makes a second click, or a reload, harmless."""

    key = forms.CharField(widget=forms.HiddenInput, required=False, max_length=64, initial=new_key, label="")


@admin.register(Schedule)
class SchedulePages(BackfillPage, ReadOnlyAdmin):
    about = (
        "Schedules start jobs and workflow runs at their due times. Clients store them through the API or "
        "by the command schedule."
    )
    list_display = ("name", "tenant_page", "state_label", "times", "target_page", "next_due", "failures")
    list_filter = ("overlap", "catch_up")
    list_select_related = ("tenant",)
    search_fields = ("name",)
    action_form = KeyedActionForm
    actions = ("trigger_chosen", "pause_chosen", "resume_chosen")
    actions_detail = ("trigger_one", "backfill_one", "cancel_backfills_one", "pause_one", "resume_one")
    readonly_fields = (
        "tenant_page",
        "state_label",
        "times",
        "target_page",
        "pause",
        "shown_target",
        "next_times",
        "strip",
        "waiting",
        "last_firings",
    )

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            ("name", "tenant_page"),
            ("state_label", "pause"),
            ("times", "target_page"),
            ("overlap", "jitter_seconds"),
            ("catch_up", "catch_up_seconds"),
            ("start_at", "end_at"),
            ("failures", "pause_after_failures"),
            *(("error_message",) if obj is not None and obj.error_code else ()),
            "strip",
            "next_times",
            "waiting",
            "last_firings",
            *(("shown_target",) if sees_payloads(request) else ()),
        )

    @column("tenant")
    def tenant_page(self, schedule: Schedule) -> SafeString | str:
        return tenant_link(schedule.tenant)

    @column("state")
    def state_label(self, schedule: Schedule) -> SafeString:
        return badge(state_of(schedule, _now()), STATE_LABELS)

    @column("due times")
    def times(self, schedule: Schedule) -> str:
        return times_in_words(schedule)

    @column("starts")
    def target_page(self, schedule: Schedule) -> SafeString | str:
        if "submit" in schedule.target:
            model = str(schedule.target["submit"].get("model", ""))
            return page_link("gpus_modelconfig", model, f"model {model}")
        name = str(schedule.target.get("workflow", {}).get("name", ""))
        return list_link("workflows_workflow", {"q": name}, f"workflow {name}")

    @column("pause")
    def pause(self, schedule: Schedule) -> str:
        if not is_paused(schedule, _now()):
            return "–"
        until = schedule.paused_until
        end = f"until {until:%Y-%m-%d %H:%M} UTC" if until else "until it is resumed"
        return f"{end}{f': {schedule.pause_reason}' if schedule.pause_reason else ''}"

    @column("next due at", ordering="next_due_at")
    def next_due(self, schedule: Schedule) -> datetime | None:
        return shown_next_due_at(schedule, _now())

    @column("waiting firings", once=True)
    def waiting(self, schedule: Schedule) -> SafeString | str:
        backlog = backlog_of(schedule, _now())
        links = [
            started_link(one) for lane in (backlog.own, backlog.backfills) if lane for one in lane.running
        ]
        texts = format_html_join("", "<p>{}.</p>", ((message,) for message in backlog.messages))
        return format_html("{}{}", texts, format_html_join(", ", "{}", ((link,) for link in links))) or "–"

    @column("target")
    def shown_target(self, schedule: Schedule) -> SafeString | str:
        return json_block(schedule.target)

    @column("next fire times", once=True)
    def next_times(self, schedule: Schedule) -> SafeString | str:
        found = fire_times(schedule, SHOWN, _now())
        rows = format_html_join(
            "", "<li>{} UTC ({})</li>", ((f"{one.fires_at:%a %Y-%m-%d %H:%M:%S}", one.local) for one in found)
        )
        return format_html("<ol>{}</ol>", rows) if found else "–"

    @column("two days", once=True)
    def strip(self, schedule: Schedule) -> SafeString:
        return calendar_strip(schedule, _now())

    @column("last firings", once=True)
    def last_firings(self, schedule: Schedule) -> SafeString | str:
        rows = format_html_join(
            "",
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            (
                (
                    f"{one.due_at:%Y-%m-%d %H:%M:%S}{f' × {one.count}' if one.count > 1 else ''}",
                    badge(one.outcome, OUTCOME_LABELS),
                    one.reason or one.end_state or "–",
                    started_link(one),
                )
                for one in Firing.objects.filter(schedule=schedule)[:SHOWN]
            ),
        )
        every = list_link("schedules_firing", {"schedule__id__exact": schedule.pk}, "All firings")
        head = format_html("<tr><th>{}</th><th>{}</th><th>{}</th><th>{}</th></tr>", *_FIRING_HEADS)
        return format_html('<table class="firings">{}{}</table>{}', head, rows, every) if rows else "–"

    def has_change_rows_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return bool(request.user.has_perm("schedules.change_schedule"))

    def has_resume_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Return True if the user may resume the schedule, and it is paused, has an error, or waits for a
        clock that was ahead."""
        schedule, now = self._schedule_to_change(request, object_id), _now()
        return schedule is not None and (
            bool(schedule.error_code) or is_paused(schedule, now) or is_ahead(schedule, now)
        )

    def has_cancel_backfills_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        schedule = self._schedule_to_change(request, object_id)
        return schedule is not None and backlog_of(schedule, _now()).backfills is not None

    def _schedule_to_change(self, request: HttpRequest, object_id: Any) -> Schedule | None:
        """The schedule; None without permission."""
        found: Schedule | None = None
        if self.has_change_rows_permission(request):
            found = self.get_object(request, object_id)
        return found

    # -- actions ---------------------------------------------------------------------------------------------

    @operation("Start now", permissions=["change_rows"])
    def trigger_chosen(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        given = request.POST.get("key", "")
        key = RequestKey(given) if given else None
        _each(request, queryset, lambda schedule, by: _trigger(schedule, by, key), "started")

    @operation("Pause", permissions=["change_rows"])
    def pause_chosen(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        _each(request, queryset, _pause, "paused")

    @operation("Resume", permissions=["change_rows"])
    def resume_chosen(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        _each(request, queryset, _resume, "resumed")

    @operation(
        "Start now",
        permissions=["change_rows"],
        icon="play_arrow",
        confirm=("Start the target now?", "Also if an earlier firing still runs.", "Start"),
        form_class=TriggerForm,
    )
    def trigger_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        key = RequestKey(form.cleaned_data["key"])
        return _one(request, object_id, lambda schedule, by: _trigger(schedule, by, key), "started")

    @operation(
        "Pause",
        permissions=["change_rows"],
        icon="pause",
        confirm=("Pause this schedule?", "Its due times are skipped during the pause.", "Pause"),
        form_class=PauseForm,
    )
    def pause_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        until, reason = form.cleaned_data["until"], form.cleaned_data["reason"]
        return _one(request, object_id, lambda schedule, by: _pause(schedule, by, until, reason), "paused")

    @operation(
        "Resume",
        permissions=["resume"],
        icon="play_circle",
        confirm=("Resume this schedule?", "Due times of the pause are not started.", "Resume"),
    )
    def resume_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _one(request, object_id, _resume, "resumed")

    @operation(
        "Cancel backfills",
        permissions=["cancel_backfills"],
        icon="block",
        confirm=(
            "Cancel the backfills that wait?",
            "Their firings that have not started are skipped; jobs and runs that were started go on.",
            "Cancel them",
        ),
    )
    def cancel_backfills_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _one(request, object_id, _cancel_backfills, "schedule has no waiting backfill now")


_FIRING_HEADS = ("Due (UTC)", "Outcome", "Why or end", "Started")
_Act = Callable[[Schedule, str], Any]


def _trigger(schedule: Schedule, by: str, key: RequestKey | None = None) -> None:
    trigger(schedule, by=by, operator=by, idempotency_key=key, ports=ports.production_ports())


def _pause(schedule: Schedule, by: str, until: datetime | None = None, reason: str = "") -> None:
    pause_schedule(
        schedule, ports=ports.production_ports(), until=until, reason=reason or f"by {by}", operator=by
    )


def _resume(schedule: Schedule, by: str) -> None:
    resume_schedule(schedule, ports=ports.production_ports(), operator=by)


def _cancel_backfills(schedule: Schedule, by: str) -> None:
    cancel_backfills(schedule, ports=ports.production_ports(), operator=by)


def _each(request: HttpRequest, schedules: QuerySet[Schedule], act: _Act, done: str) -> None:
    """Act on schedules, and say what was done."""
    count, by = 0, actor(request)
    for schedule in schedules.select_related("tenant"):
        try:
            act(schedule, by)
        except Refused as refused:
            messages.warning(request, f"{schedule.name}: {refused}")
            continue
        count += 1
    if count:
        messages.success(request, f"{count} {done}.")


def _one(request: HttpRequest, object_id: str, act: _Act, done: str) -> HttpResponse:
    _each(request, Schedule.objects.filter(pk=object_id), act, done)
    return back_to(request, reverse("admin:schedules_schedule_change", args=[object_id]))


def started_link(firing: Firing) -> SafeString | str:
    """Return a link to the job or run that a firing started."""
    if firing.job_id:
        return job_link(firing.job_id)
    return run_link(firing.run_id) if firing.run_id else "–"


@admin.register(Firing)
class FiringPages(HistoryAdmin):
    about = "The outcome of each due time: started, waiting, skipped or missed, and why."
    list_display = (
        "id",
        "schedule_page",
        "due_at",
        "count",
        "outcome_label",
        "reason",
        "started",
        "end_state",
    )
    list_filter = ("outcome",)
    list_select_related = ("schedule",)
    ordering = ("-id",)
    sortable_by = ()
    fields = (
        ("id", "schedule_page"),
        ("due_at", "until_at"),
        ("outcome_label", "reason"),
        "detail",
        ("started", "at"),
        ("ended_at", "end_state"),
        ("by", "backfill"),
        "count",
    )
    readonly_fields = ("schedule_page", "outcome_label", "started")

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        return lookup == "schedule__id__exact" or super().lookup_allowed(lookup, value, request)

    @column("schedule")
    def schedule_page(self, firing: Firing) -> SafeString | str:
        return page_link("schedules_schedule", firing.schedule_id, firing.schedule.name)

    @column("outcome")
    def outcome_label(self, firing: Firing) -> SafeString:
        return badge(firing.outcome, OUTCOME_LABELS)

    @column("started")
    def started(self, firing: Firing) -> SafeString | str:
        return started_link(firing)
