"""A form that writes only what its user changed."""

from __future__ import annotations

import json
from typing import Any

from django import forms

from foundation import json_text

_CHOICES_OF_SEVERAL = (forms.MultipleChoiceField, forms.ModelMultipleChoiceField)


class SentChoices(forms.HiddenInput):
    """The choices that a page showed, as JSON: Django's own widget sends nothing for no choices."""

    def format_value(self, value: Any) -> str:
        return json.dumps(value, default=str)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        text = super().value_from_datadict(data, files, name) or ""
        try:
            return json_text.read(text.encode())
        except ValueError:
            return text  # is no list, so the field counts as changed


class OwnChanges(forms.ModelForm):  # type: ignore[type-arg]
    """Keeps what others changed since the page was opened, in all fields that the user left as they were.

    The page sends back the values that it showed, in hidden inputs. Fields without their hidden input are
    written as they were sent. The view reads the row under a lock, which it holds until the row is saved.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            is_sent = not self.is_bound or self.add_initial_prefix(name) in self.data
            field.show_hidden_initial = is_sent and not field.disabled  # a password's hash is disabled
            if isinstance(field, _CHOICES_OF_SEVERAL):
                field.hidden_widget = SentChoices

    def _clean_form(self) -> None:
        """Replace stale values before `clean` judges them."""
        meta = self.instance._meta
        for column in (*meta.concrete_fields, *meta.many_to_many):
            field = self.fields.get(column.name)
            is_own = field is None or not field.show_hidden_initial or column.name in self.changed_data
            if not is_own and column.name in self.cleaned_data:
                stored = getattr(self.instance, column.name)
                self.cleaned_data[column.name] = stored.all() if column.many_to_many else stored
        super()._clean_form()  # type: ignore[misc]
