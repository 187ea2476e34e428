"""Pages of schedules: their next fire times, a strip of two days, the last firings, and the actions trigger,
backfill, cancel of backfills, pause and resume. Clients store schedules through the API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from unfold.forms import BaseDialogForm
from unfold.widgets import UnfoldAdminTextInputWidget

from admin_ui.actions.operations import actor, back_to
from admin_ui.pages.workflows import run_link
from admin_ui.parts.base_pages import HistoryAdmin, ReadOnlyAdmin, sees_payloads
from admin_ui.parts.formatting import badge, job_link, json_block, list_link, page_link, tenant_link
from admin_ui.parts.typed_decorators import column, operation
from foundation.moments import read_moment
from jobs import ports
from jobs.domain.errors import Refused
from workflows.schedules import operations
from workflows.schedules.backlog import backlog_of
from workflows.schedules.domain.policy import Outcome
from workflows.schedules.execution.fire import is_paused
from workflows.schedules.models import Firing, Schedule

SHOWN = 10
STRIP_HOURS = 24
"""The strip shows so many hours back, and as many ahead."""
MAX_TICKS = 500
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


class _TimeField(forms.CharField):
    widget = UnfoldAdminTextInputWidget

    def clean(self, value: Any) -> datetime:
        text = super().clean(value)
        try:
            return read_moment(text, _now()) if text else _now()
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None


class BackfillForm(BaseDialogForm):  # type: ignore[misc]
    """The time span of a backfill."""

    begin = _TimeField(
        label="From", help_text="First due time, such as 2026-02-01T00:00 (UTC), or 2h, 7d for that long ago."
    )
    end = _TimeField(label="To", help_text="Last due time, the same; empty: now.", required=False)
    parallel = forms.BooleanField(
        label="In parallel",
        required=False,
        help_text="Do not wait for each other: needed if runs wait for people.",
    )


@admin.register(Schedule)
class SchedulePages(ReadOnlyAdmin):
    about = (
        "Schedules start jobs and workflow runs at their due times. Clients store them through the API or "
        "by the command schedule."
    )
    list_display = ("name", "tenant_page", "state_label", "times", "target_page", "next_due", "failures")
    list_filter = ("overlap", "catch_up")
    list_select_related = ("tenant",)
    search_fields = ("name",)
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
            "error_message",
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
        return operations.times_in_words(schedule)

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
        return operations.shown_next_due_at(schedule, _now())

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
        found = operations.fire_times(schedule, SHOWN, _now())
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

    # -- actions ---------------------------------------------------------------------------------------------

    @operation("Start now", permissions=["change_rows"])
    def trigger_chosen(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        _each(request, queryset, _trigger, "started")

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
    )
    def trigger_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _one(request, object_id, _trigger, "started")

    @operation(
        "Pause",
        permissions=["change_rows"],
        icon="pause",
        confirm=("Pause this schedule?", "Its due times are skipped until it is resumed.", "Pause"),
    )
    def pause_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _one(request, object_id, _pause, "paused")

    @operation(
        "Resume",
        permissions=["change_rows"],
        icon="resume",
        confirm=("Resume this schedule?", "Due times of the pause are not started.", "Resume"),
    )
    def resume_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return _one(request, object_id, _resume, "resumed")

    @operation(
        "Backfill",
        permissions=["change_rows"],
        icon="history",
        confirm=(
            "Start past due times again?",
            "All due times of the span, beside the schedule's own ones.",
            "Start them",
        ),
        form_class=BackfillForm,
    )
    def backfill_one(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        begin, end = form.cleaned_data["begin"], form.cleaned_data["end"]

        def backfill(schedule: Schedule, by: str) -> None:
            operations.backfill(
                schedule,
                begin,
                end,
                by=by,
                operator=by,
                ports=ports.production_ports(),
                parallel=form.cleaned_data["parallel"],
            )

        return _one(request, object_id, backfill, "backfilled")

    @operation(
        "Cancel backfills",
        permissions=["change_rows"],
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


def _trigger(schedule: Schedule, by: str) -> None:
    operations.trigger(schedule, by=by, operator=by, ports=ports.production_ports())


def _pause(schedule: Schedule, by: str) -> None:
    operations.pause_schedule(schedule, ports=ports.production_ports(), reason=f"by {by}", operator=by)


def _resume(schedule: Schedule, by: str) -> None:
    operations.resume_schedule(schedule, ports=ports.production_ports(), operator=by)


def _cancel_backfills(schedule: Schedule, by: str) -> None:
    operations.cancel_backfills(schedule, ports=ports.production_ports(), operator=by)


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


def calendar_strip(schedule: Schedule, now: datetime) -> SafeString:
    """Return an SVG of the last and the next hours: a tick for each firing and each due time."""
    span = timedelta(hours=STRIP_HOURS)
    begin, width = now - span, 2 * STRIP_HOURS * 3600

    def tick(at: datetime, kind: str) -> tuple[str, str, str]:
        left = 100 * (at - begin).total_seconds() / width
        return f"{min(99.7, max(0.0, left)):.2f}%", f"tick tick-{kind}", f"{at:%a %H:%M:%S} {kind}"

    past = Firing.objects.filter(schedule=schedule, due_at__gte=begin)[:MAX_TICKS]
    ticks = [tick(one.due_at, one.outcome) for one in past]
    for one in operations.fire_times(schedule, MAX_TICKS, now):
        if one.fires_at > now + span:
            break
        ticks.append(tick(one.fires_at, "due"))
    drawn = format_html_join(
        "", '<rect x="{}" y="4" width="3" height="24" class="{}"><title>{}</title></rect>', ticks
    )
    hours = [begin + timedelta(hours=hour) for hour in range(0, 2 * STRIP_HOURS, 6)]
    labels = format_html_join(
        "",
        '<text x="{}" y="44" class="tick-hour">{}</text>',
        ((f"{100 * number / len(hours):.2f}%", f"{at:%a %H:%M}") for number, at in enumerate(hours)),
    )
    counts = ", ".join(
        f"{sum(one.outcome == outcome for one in past)} {outcome.value}" for outcome in Outcome
    )
    return format_html(
        '<svg class="strip" width="100%" height="48" role="img" aria-label="{}">'
        '<rect x="0" y="4" width="100%" height="24" class="strip-well"/>'
        '<rect x="50%" y="0" width="1" height="32" class="tick-now"><title>now</title></rect>{}{}</svg>',
        f"Last {STRIP_HOURS} hours: {counts}",
        drawn,
        labels,
    )


@admin.register(Firing)
class FiringPages(HistoryAdmin):
    about = "What became of each due time: started, waiting, skipped or missed, and why."
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
