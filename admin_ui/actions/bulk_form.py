"""Which jobs a bulk deed is for, as operators write it: the fields of `JobFilter`, from a form or a link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from gpus.models import ModelConfig, Server
from jobs.domain.states import JobState, is_final
from jobs.models import Tenant
from jobs.operations.bulk import BulkAction
from jobs.reports.job_filter import JobFilter

_ANY = ("", "any")


def _text(**attrs: str) -> UnfoldAdminTextInputWidget:
    return UnfoldAdminTextInputWidget(attrs=attrs)


class BulkForm(forms.Form):
    """Bound to the query of the page; what is empty does not matter."""

    deed = forms.ChoiceField(
        label="Do what",
        choices=[
            (BulkAction.RETRY.value, "Retry dead letters"),
            (BulkAction.DISMISS.value, "Dismiss dead letters"),
            (BulkAction.CANCEL.value, "Cancel jobs"),
        ],
        widget=UnfoldAdminSelectWidget,
    )
    model = forms.ChoiceField(required=False, widget=UnfoldAdminSelectWidget)
    tenant = forms.CharField(required=False, widget=_text())
    state = forms.ChoiceField(
        required=False,
        choices=[_ANY, *((state.value, state.value) for state in JobState if not is_final(state))],
        widget=UnfoldAdminSelectWidget,
        help_text="Only where jobs are cancelled.",
    )
    error_code = forms.CharField(required=False, label="Error", widget=_text())
    fingerprint = forms.CharField(
        required=False, label="Kind of failure", widget=_text(), help_text="The fingerprint of a group."
    )
    tag = forms.CharField(required=False, widget=_text())
    server = forms.ChoiceField(
        required=False, widget=UnfoldAdminSelectWidget, help_text="One that an attempt ran on."
    )
    created_after = forms.DateTimeField(
        required=False, label="Created from (UTC)", widget=_text(type="datetime-local", step="1")
    )
    created_before = forms.DateTimeField(
        required=False, label="Created before (UTC)", widget=_text(type="datetime-local", step="1")
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, rows in (("model", ModelConfig.objects.all()), ("server", Server.objects.all())):
            names = list(rows.order_by("name").values_list("name", flat=True))
            given = str(self.data.get(name, "") or "")
            if given and given not in names:
                names.insert(0, given)  # of a job that outlived the registry
            field: Any = self.fields[name]
            field.choices = [_ANY, *((each, each) for each in names)]

    def clean_tenant(self) -> str:
        name: str = self.cleaned_data["tenant"]
        if name and not Tenant.objects.filter(name=name).exists():
            raise forms.ValidationError("There is no such tenant.")
        return name

    @property
    def chosen(self) -> JobFilter:
        """Of a valid form."""
        given = {name: value or None for name, value in self.cleaned_data.items() if name != "deed"}
        if given["state"]:
            given["state"] = JobState(given["state"])
        return JobFilter(**given)

    @property
    def deed_chosen(self) -> BulkAction:
        return BulkAction(self.cleaned_data["deed"])


_SAME_IN_LISTS = {
    "model": "model",
    "error_code": "error_code",
    "error_fingerprint": "fingerprint",
    "state__exact": "state",
}


def query_of_list(filters: Mapping[str, str], deed: BulkAction) -> str | None:
    """The page's query for what a list of jobs shows; None where the list is narrowed in a way that the page
    does not know (its search, a pool, when jobs ended)."""
    query = {"deed": deed.value}
    for name, value in filters.items():
        if name in ("o", "e", "after", "before") or not value:
            continue
        if name in _SAME_IN_LISTS:
            query[_SAME_IN_LISTS[name]] = value
        elif name == "tenant__id__exact":
            if not value.isdecimal():
                return None
            query["tenant"] = Tenant.objects.filter(pk=value).values_list("name", flat=True).first() or "?"
        elif name in ("created_at_from_0", "created_at_from_1"):
            query["created_after"] = _moment(filters, "created_at_from")
        elif name in ("created_at_to_0", "created_at_to_1"):
            query["created_before"] = _moment(filters, "created_at_to")
        else:
            return None
    return urlencode(query)


def _moment(filters: Mapping[str, str], name: str) -> str:
    return f"{filters.get(f'{name}_0', '')}T{filters.get(f'{name}_1', '')}"
