"""What a job's page shows beneath it: its attempts, events and callbacks."""

from __future__ import annotations

from django.utils.safestring import SafeString

from jobs.models import Attempt, Callback, Event

from .marks import column
from .read_only import ReadOnlyInline
from .shapes import ATTEMPT_LABELS, CALLBACK_LABELS, badge, span


class AttemptsOfJob(ReadOnlyInline):
    model = Attempt
    fields = (
        "number",
        "round",
        "state_label",
        "where",
        "epoch",
        "error_code",
        "error_message",
        "started_at",
        "ran",
    )
    show_change_link = True
    tab = True

    @column("state")
    def state_label(self, attempt: Attempt) -> SafeString:
        return badge(attempt.state, ATTEMPT_LABELS)

    @column("slot")
    def where(self, attempt: Attempt) -> str:
        return f"{attempt.server}/{attempt.slot}"

    @column("ran")
    def ran(self, attempt: Attempt) -> str:
        return span(attempt.started_at, attempt.finished_at)


class EventsOfJob(ReadOnlyInline):
    model = Event
    fields = ("seq", "type", "at", "data")
    tab = True


class CallbacksOfJob(ReadOnlyInline):
    model = Callback
    fields = ("id", "round", "state_label", "url", "tries", "next_at", "delivered_at")
    show_change_link = True
    tab = True

    @column("state")
    def state_label(self, callback: Callback) -> SafeString:
        return badge(callback.state, CALLBACK_LABELS)
