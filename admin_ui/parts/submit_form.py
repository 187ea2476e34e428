"""Fields that the forms of jobs and runs share, and the refusals of a submit at their fields."""

from __future__ import annotations

import uuid
from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from foundation.http_api.problems import FieldError, Problem
from foundation.http_client import MAX_URL_LENGTH
from jobs.domain.errors import IdempotencyConflict, Refused
from jobs.operations.queue_position import FIRST_PRIORITY, LAST_PRIORITY


def new_key() -> str:
    """Return an Idempotency-Key for a form: it makes a second click harmless."""
    return f"admin-{uuid.uuid4().hex}"


class PriorityField(forms.IntegerField):
    """A priority of a job or run."""

    widget = UnfoldAdminIntegerFieldWidget

    def __init__(self) -> None:
        super().__init__(
            min_value=FIRST_PRIORITY,
            max_value=LAST_PRIORITY,
            help_text="1 is the highest. 1–3 are urgent, 4–6 normal, 7–9 bulk.",
        )


class SubmitForm(forms.Form):
    """Options of a job or run. key: of `new_key`."""

    priority = PriorityField()
    tags = forms.CharField(required=False, widget=UnfoldAdminTextInputWidget, help_text="With commas.")
    callback_url = forms.CharField(
        required=False,
        label="Callback URL",
        max_length=MAX_URL_LENGTH,
        widget=UnfoldAdminTextInputWidget(attrs={"inputmode": "url"}),
    )
    key = forms.CharField(widget=forms.HiddenInput, max_length=64)

    def clean_tags(self) -> list[str]:
        return [tag.strip() for tag in self.cleaned_data["tags"].split(",") if tag.strip()]

    @property
    def options(self) -> dict[str, Any]:
        """The fields of a valid form, as the API takes them; null: not given."""
        given = {name: value for name, value in self.cleaned_data.items() if name != "key"}
        return {**given, "tags": given["tags"] or None, "callback_url": given["callback_url"] or None}

    def add_refusal(self, refusal: Problem | Refused, *, but: str = "") -> None:
        """Show each error at its field. but: name of a field of the body that another form shows.

        The key of a form that was sent, gone back to and changed is renewed: sent once more, it is another
        request."""
        if isinstance(refusal, IdempotencyConflict):
            self.data = {**self.data.dict(), "key": new_key()}  # type: ignore[attr-defined]
            self.add_error(
                None, "This form was sent before, with other values. Send it again if you mean both."
            )
            return
        for error in errors_of(refusal):
            name = field_name(error)
            if not but or name != but:
                self.add_error(name if name in self.fields else None, error_text(error, name))


def errors_of(refusal: Problem | Refused) -> list[FieldError]:
    """Return the errors of a refused request, at least one."""
    if isinstance(refusal, Refused):
        return [FieldError(refusal.pointer or "", refusal.code, str(refusal))]
    return list(refusal.errors) or [FieldError("", refusal.code, refusal.detail)]


def field_name(error: FieldError) -> str:
    """Return the name of the body's field that an error is in; empty: the error is of the whole body."""
    return error.pointer.split("/")[1] if error.pointer.startswith("/") else ""


def error_text(error: FieldError, name: str) -> str:
    """Return an error with its place inside the field of this name; empty: of the whole body."""
    inside = error.pointer.removeprefix(f"/{name}" if name else "")
    return f"{inside}: {error.detail}" if inside.startswith("/") else error.detail
