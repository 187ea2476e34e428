"""A read-only proxy to Flower behind the admin's login: staff get its pages and data, never its controls.

Flower is reachable only from this host or its containers and requires FLOWER_BASIC_AUTH, which this process
adds. Cookies are passed in neither direction.
"""

from __future__ import annotations

from base64 import b64encode
from http.cookiejar import DefaultCookiePolicy

import requests
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import URLPattern, path
from django.views.decorators.csrf import csrf_exempt

from admin_ui import FLOWER_PREFIX

_READ_BY_POST = frozenset({"tasks/datatable"})
"""The only POST that reads; all others of Flower change something."""
_TIMEOUTS_SECONDS = (2.0, 15.0)
_TO_FLOWER = ("Accept", "Content-Type", "If-None-Match", "If-Modified-Since", "X-Requested-With")
_FROM_FLOWER = ("Content-Type", "Cache-Control", "ETag", "Last-Modified", "Location", "Vary")


def flower_urls() -> list[URLPattern]:
    """Return the routes of the proxy, with the connections to Flower that they share."""
    session = _new_session()

    @csrf_exempt
    def flower_page(request: HttpRequest, page: str = "") -> HttpResponse:
        return _forwarded(session, request, page)

    staff_only = admin.site.admin_view(flower_page)
    return [
        path(f"{FLOWER_PREFIX}/", staff_only, name="flower"),
        path(f"{FLOWER_PREFIX}/<path:page>", staff_only),
    ]


def _forwarded(session: requests.Session, request: HttpRequest, page: str) -> HttpResponse:
    """Forward a GET, HEAD or the tasks' POST to Flower. 502 if Flower does not answer or refuses the
    password."""
    if not request.user.has_perm("jobs.view_job"):
        raise PermissionDenied
    if request.method not in ("GET", "HEAD") and not (request.method == "POST" and page in _READ_BY_POST):
        return HttpResponseNotAllowed(["GET", "HEAD"])
    try:
        answer = session.request(
            request.method,
            f"{settings.DISPATCHER.flower_url.rstrip('/')}{request.get_full_path()}",
            data=request.body,
            headers={name: request.headers[name] for name in _TO_FLOWER if name in request.headers}
            | {"Authorization": _login()},
            timeout=_TIMEOUTS_SECONDS,
            allow_redirects=False,
        )
    except requests.RequestException:
        return _bad_gateway(
            f"Flower does not answer at {settings.DISPATCHER.flower_url}. "
            "Start it, or set DISPATCHER_FLOWER_URL to its address."
        )
    if answer.status_code == 401:
        return _bad_gateway(
            "Flower refuses the password. Set the same FLOWER_BASIC_AUTH for the web and for Flower."
        )
    headers = {name: answer.headers[name] for name in _FROM_FLOWER if name in answer.headers}
    return HttpResponse(answer.content, status=answer.status_code, headers=headers)


def _new_session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # no proxy, no .netrc
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # the session is shared by all users
    return session


def _login() -> str:
    return f"Basic {b64encode(settings.FLOWER_LOGIN.encode()).decode()}"


def _bad_gateway(text: str) -> HttpResponse:
    return HttpResponse(f"{text}\n", status=502, content_type="text/plain; charset=utf-8")
