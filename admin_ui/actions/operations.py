"""Admin actions on selected rows: one service call per row, one message with the counts. An action may show a
confirmation page first, as Django's own delete action does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse

from gpus.errors import LeasingUnavailable
from jobs.domain.errors import Refused
from jobs.models import Job

LATER = "Redis does not answer now: it takes effect once Redis is back."
MOST_AT_ONCE = 1000
"""Rows that one click moves: a request must end."""


def actor(request: HttpRequest) -> str:
    """Who acts, as the audit entries say it."""
    return f"user:{request.user.get_username()}"


def for_each(request: HttpRequest, ids: Iterable[str], act: Callable[[str], str]) -> None:
    """act: calls one service and returns the word for what it did, as in ``3 cancelled``."""
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for number, row_id in enumerate(ids):
        if number == MOST_AT_ONCE:
            messages.warning(request, f"Only the first {MOST_AT_ONCE}: run it again for the rest.")
            break
        try:
            counts[act(row_id)] += 1
        except Refused as refusal:
            refused[str(refusal)] += 1
        except LeasingUnavailable:
            refused["Redis does not answer now; try again once it is back."] += 1
        except Job.DoesNotExist:
            refused["It is gone."] += 1
    if counts:
        messages.success(request, ", ".join(f"{count} {word}" for word, count in counts.items()) + ".")
    for reason, count in refused.items():
        messages.warning(request, f"{count} not: {reason}")


def back_to(request: HttpRequest, page: str) -> HttpResponse:
    """After a dialog: it sends by htmx, which has to be told to leave the page."""
    if request.headers.get("HX-Request"):
        return HttpResponse(headers={"HX-Redirect": page})
    return redirect(page)


Action = Callable[[Any, HttpRequest, QuerySet[Any]], HttpResponse | None]
NAMED = 20
"""Rows that the page names; more are only counted."""


def asks_first(question: str, text: str, button: str) -> Callable[[Action], Action]:
    """Below `operation`, which looks at permissions first. The method runs when the page is answered."""

    def mark(method: Action) -> Action:
        @wraps(method)
        def act(page: Any, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
            if request.POST.get("post"):
                return method(page, request, queryset)
            rows = list(queryset[: NAMED + 1])
            context = {
                **page.admin_site.each_context(request),
                "title": question,
                "opts": page.opts,
                "text": text,
                "button": button,
                "rows": rows[:NAMED],
                "more": queryset.count() - NAMED if len(rows) > NAMED else 0,
                "action": method.__name__,
                "ticked_name": ACTION_CHECKBOX_NAME,
                "ticked": request.POST.getlist(ACTION_CHECKBOX_NAME),
                "across": request.POST.get("select_across", "0"),
            }
            return TemplateResponse(request, "admin_ui/asking.html", context)

        return act

    return mark
