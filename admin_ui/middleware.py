"""The admin's middleware: allowed hosts, addresses that PostgreSQL cannot search for, and session limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.contrib.auth import logout, user_logged_in
from django.core.exceptions import BadRequest
from django.dispatch import receiver
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host

from jobs.api.errors import not_found

BEGAN, SEEN = "signed_in_at", "seen_at"
"""Session keys; their values are Unix seconds."""
NOTE_SECONDS = 60.0
"""Shortest interval between two writes of `SEEN` to the session."""


class AdminHosts:
    """Answers 404 for the admin's path under a host name that DISPATCHER_ADMIN_HOSTS does not list."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        hosts = settings.DISPATCHER.admin_hosts
        if hosts and is_of_admin(request):
            name, _ = split_domain_port(request.get_host())
            if not validate_host(name, hosts):
                return not_found(request, Http404())  # type: ignore[return-value]
        return self._get_response(request)


class NoNulls:
    """Answers 400 for an address of the admin with a NUL: no column has one, and PostgreSQL takes none in a
    query."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if is_of_admin(request) and ("\0" in request.path_info or "%00" in request.META["QUERY_STRING"]):
            raise BadRequest("The address has a NUL character.")
        return self._get_response(request)


class SessionLimits:
    """Signs users out after `session_seconds`, or after `session_idle_seconds` without a click."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if settings.SESSION_COOKIE_NAME in request.COOKIES and request.user.is_authenticated:
            self._limit(request)
        return self._get_response(request)

    def _limit(self, request: HttpRequest) -> None:
        now, most = time.time(), settings.DISPATCHER
        began = request.session.setdefault(BEGAN, now)
        seen = request.session.setdefault(SEEN, began)
        if not (0 <= now - began <= most.session_seconds and now - seen <= most.session_idle_seconds):
            logout(request)
        elif now - seen >= min(NOTE_SECONDS, most.session_idle_seconds / 4) and is_click(request):
            request.session[SEEN] = now


def is_of_admin(request: HttpRequest) -> bool:
    """Return True for a path of the admin."""
    return f"{request.path_info}/".startswith(f"/{settings.DISPATCHER.admin_path}/")


def is_click(request: HttpRequest) -> bool:
    """Return False for requests that a page sends by itself: its event stream and its periodic reloads."""
    is_stream = "text/event-stream" in request.headers.get("Accept", "")
    refreshes = request.method == "GET" and "HX-Request" in request.headers
    is_data = request.headers.get("X-Requested-With") == "XMLHttpRequest"  # Flower's tables
    return not (is_stream or refreshes or is_data)


@receiver(user_logged_in, dispatch_uid="admin_ui.middleware")
def _begin(sender: Any, request: HttpRequest | None, **_: Any) -> None:
    if request is not None:
        now = time.time()
        request.session[BEGAN], request.session[SEEN] = now, now
        request.session.clear_expired()
