"""Admin actions on selected rows: one service call per row, one message with the counts. `confirm_first`
shows a confirmation page before an action, as Django's own delete action does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse

from gpus.errors import LeasingUnavailable
from jobs.domain.errors import Refused

LATER = "Redis does not answer now; the change takes effect once Redis is back."
MAX_AT_ONCE = 1000
"""Limit of rows per click, so that the request does not time out."""


def actor(request: HttpRequest) -> str:
    """Return the signed-in user as audit entries name actors: ``user:NAME``."""
    return f"user:{request.user.get_username()}"


def for_each(request: HttpRequest, ids: Iterable[str], act: Callable[[str], str]) -> None:
    """Call `act` for each row, at most `MAX_AT_ONCE`, and report the counts as messages.

    act: calls one service for an id and returns its outcome as a participle, as in ``3 cancelled``.
    """
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for number, row_id in enumerate(ids):
        if number == MAX_AT_ONCE:
            messages.warning(request, f"Only the first {MAX_AT_ONCE} rows. Run it again for the rest.")
            break
        try:
            counts[act(row_id)] += 1
        except Refused as refusal:
            refused[str(refusal)] += 1
        except LeasingUnavailable:
            refused["Redis does not answer now. Try again once it is back."] += 1
        except ObjectDoesNotExist:
            refused["It no longer exists."] += 1
    if counts:
        messages.success(request, ", ".join(f"{count} {word}" for word, count in counts.items()) + ".")
    for reason, count in refused.items():
        messages.warning(request, f"{count} refused: {reason}")


def back_to(request: HttpRequest, page: str) -> HttpResponse:
    """Redirect after a dialog: htmx, which sends it, needs a header of its own to leave the page."""
    if request.headers.get("HX-Request"):
        return HttpResponse(headers={"HX-Redirect": page})
    return redirect(page)


def act_on_one(request: HttpRequest, row_id: str, act: Callable[[str], str], *, page: str) -> HttpResponse:
    """Call `act` for the row of a dialog, as `for_each` does, and go back to its page. page: name of the
    URL."""
    for_each(request, [row_id], act)
    return back_to(request, reverse(page, args=[row_id]))


Action = Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]
MAX_LISTED = 20
"""Rows that the confirmation page lists; the others are only counted."""


def confirm_first(question: str, text: str, button: str) -> Callable[[Action], Action]:
    """Decorate an action with a confirmation page; the action runs when the page's form is sent.

    Goes below `operation`, which checks permissions first.
    """

    def decorate(method: Action) -> Action:
        @wraps(method)
        def act(page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
            if request.POST.get("post"):
                return method(page, request, queryset)
            rows = list(queryset[: MAX_LISTED + 1])
            context = {
                **page.admin_site.each_context(request),
                "title": question,
                "opts": page.opts,
                "text": text,
                "button": button,
                "rows": rows[:MAX_LISTED],
                "more": queryset.count() - MAX_LISTED if len(rows) > MAX_LISTED else 0,
                "action": method.__name__,
                "selected_name": ACTION_CHECKBOX_NAME,
                "selected": request.POST.getlist(ACTION_CHECKBOX_NAME),
                "across": request.POST.get("select_across", "0"),
            }
            return TemplateResponse(request, "admin_ui/confirm.html", context)

        return act

    return decorate
