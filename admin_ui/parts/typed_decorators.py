"""Unfold's decorators, with types: what a column shows, what a button does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from unfold import decorators
from unfold.dataclasses import ActionDialog
from unfold.forms import BaseDialogForm

Method = TypeVar("Method", bound=Callable[..., Any])


def column(description: str, *, ordering: str | None = None) -> Callable[[Method], Method]:
    """ordering: the field it sorts by."""

    def mark(method: Method) -> Method:
        return decorators.display(description=description, ordering=ordering)(method)  # type: ignore[no-any-return]

    return mark


def operation(
    description: str,
    *,
    permissions: Sequence[str],
    icon: str | None = None,
    confirm: tuple[str, str, str] | None = None,
    form_class: type[BaseDialogForm] = BaseDialogForm,
) -> Callable[[Method], Method]:
    """An action of a list or a page. confirm: title, text and button of a dialog; then the method gets its
    form (of form_class) first, and nothing happens by GET."""
    dialog = confirm and ActionDialog(
        title=confirm[0], description=confirm[1], form_class=form_class, form_submit_text=confirm[2]
    )

    def mark(method: Method) -> Method:
        return decorators.action(  # type: ignore[no-any-return]
            description=description, permissions=permissions, icon=icon, dialog=dialog
        )(method)

    return mark
