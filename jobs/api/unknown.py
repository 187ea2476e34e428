"""Whatever is under /api and is no route."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from foundation.http_api.problems import Problem
from jobs.api.errors import answer


def unknown_route(request: HttpRequest, rest: str = "") -> HttpResponse:
    """A route of its own, because with DEBUG on Django would answer a page of HTML."""
    return answer(Problem(404, "unknown_route", f"There is no route {request.path[:200]}."))


unknown_route.csrf_exempt = True  # type: ignore[attr-defined]
