"""Typed versions of unfold's decorators for list columns and actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from unfold import decorators
from unfold.dataclasses import ActionDialog
from unfold.forms import BaseDialogForm

Method = TypeVar("Method", bound=Callable[..., Any])


def column(
    description: str, *, ordering: str | None = None, once: bool = False
) -> Callable[[Method], Method]:
    """Make a method a list column. description: its heading. ordering: the field that it sorts by. once: keep
    its value on the row, for one that asks the database: a page's template reads a value up to five times."""

    def decorate(method: Method) -> Method:
        shown = _once(method) if once else method
        return decorators.display(description=description, ordering=ordering)(shown)  # type: ignore[no-any-return]

    return decorate


def _once(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def known(page: Any, row: Any) -> Any:
        values = row.__dict__.setdefault("_column_values", {})
        if method.__qualname__ not in values:
            values[method.__qualname__] = method(page, row)
        return values[method.__qualname__]

    return known


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
