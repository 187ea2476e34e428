"""Typed versions of unfold's decorators for list columns and actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from unfold import decorators
from unfold.dataclasses import ActionDialog
from unfold.forms import BaseDialogForm

Method = TypeVar("Method", bound=Callable[..., Any])


def column(description: str, *, ordering: str | None = None) -> Callable[[Method], Method]:
    """Make a method a list column. description: its heading. ordering: the field that it sorts by."""

    def decorate(method: Method) -> Method:
        return decorators.display(description=description, ordering=ordering)(method)  # type: ignore[no-any-return]

    return decorate


def operation(
    description: str,
    *,
    permissions: Sequence[str],
    icon: str | None = None,
    confirm: tuple[str, str, str] | None = None,
    form_class: type[BaseDialogForm] = BaseDialogForm,
) -> Callable[[Method], Method]:
    """Make a method an action of a list or a page.

    description: its label. permissions: names of ``has_…_permission`` methods. confirm: title, text and
    button of a dialog; the method then gets the dialog's form, of form_class, and runs only by POST.
    """
    dialog = confirm and ActionDialog(
        title=confirm[0], description=confirm[1], form_class=form_class, form_submit_text=confirm[2]
    )

    def decorate(method: Method) -> Method:
        return decorators.action(  # type: ignore[no-any-return]
            description=description, permissions=permissions, icon=icon, dialog=dialog
        )(method)

    return decorate
