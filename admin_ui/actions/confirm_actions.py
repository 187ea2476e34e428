"""Actions on ticked rows that ask first, as Django's own deleting does: a page between click and deed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

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
