"""A form that writes only what its user changed."""

from __future__ import annotations

from typing import Any

from django import forms


class OwnChanges(forms.ModelForm):  # type: ignore[type-arg]
    """Keeps what others changed since the page was opened, in all fields that the user left as they were.

    The page sends back the values that it showed, in hidden inputs. Choices of several, and fields without
    their hidden input, are written as they were sent. The view reads the row under a lock, which it holds
    until the row is saved.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            is_sent = not self.is_bound or self.add_initial_prefix(name) in self.data
            # a password's hash is disabled; an empty choice of several has no hidden input
            is_kept = not field.disabled and not isinstance(field, forms.MultipleChoiceField)
            field.show_hidden_initial = is_sent and is_kept

    def _clean_form(self) -> None:
        """Replace stale values before `clean` judges them."""
        for column in self.instance._meta.concrete_fields:
            field = self.fields.get(column.name)
            is_own = field is None or not field.show_hidden_initial or column.name in self.changed_data
            if not is_own and column.name in self.cleaned_data:
                self.cleaned_data[column.name] = getattr(self.instance, column.name)
        super()._clean_form()  # type: ignore[misc]
