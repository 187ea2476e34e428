"""Flower behind the admin's login: its pages and data, passed on to staff; never its controls.

Flower listens where only this host or its containers reach it, and asks for FLOWER_BASIC_AUTH; this process
knows the same. Neither the browser's cookies nor Flower's cross over.
"""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from http.cookiejar import DefaultCookiePolicy

import requests
from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from admin_ui import FLOWER_PREFIX

_ASKED_BY_POST = frozenset({"tasks/datatable"})
"""Reads; whatever else Flower takes by POST changes something."""
_TIMEOUTS_SECONDS = (2.0, 15.0)
_TO_FLOWER = ("Accept", "Content-Type", "If-None-Match", "If-Modified-Since", "X-Requested-With")
_FROM_FLOWER = ("Content-Type", "Cache-Control", "ETag", "Last-Modified", "Location", "Vary")


@csrf_exempt
def flower_page(request: HttpRequest, page: str = "") -> HttpResponse:
    """502 if Flower is away or does not know our password."""
    if not request.user.has_perm("jobs.view_job"):
        raise PermissionDenied
    if request.method not in ("GET", "HEAD") and not (request.method == "POST" and page in _ASKED_BY_POST):
        return HttpResponseNotAllowed(["GET", "HEAD"])
    try:
        answer = _session().request(
            request.method,
            f"{settings.DISPATCHER.flower_url.rstrip('/')}{request.get_full_path()}",
            data=request.body,
            headers={name: request.headers[name] for name in _TO_FLOWER if name in request.headers}
            | {"Authorization": _login()},
            timeout=_TIMEOUTS_SECONDS,
            allow_redirects=False,
        )
    except requests.RequestException:
        return _broken(
            f"Flower does not answer at {settings.DISPATCHER.flower_url}. Is it started? "
            "DISPATCHER_FLOWER_URL says where the web finds it."
        )
    if answer.status_code == 401:
        return _broken("Flower refuses our password: the web and Flower need the same FLOWER_BASIC_AUTH.")
    headers = {name: answer.headers[name] for name in _FROM_FLOWER if name in answer.headers}
    return HttpResponse(answer.content, status=answer.status_code, headers=headers)


_staff_only = admin.site.admin_view(flower_page)
flower_urls = [
    path(f"{FLOWER_PREFIX}/", _staff_only, name="flower"),
    path(f"{FLOWER_PREFIX}/<path:page>", _staff_only),
]


@lru_cache(maxsize=1)
def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # no proxy, no .netrc
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # one session serves everybody
    return session


def _login() -> str:
    return f"Basic {b64encode(settings.FLOWER_LOGIN.encode()).decode()}"


def _broken(text: str) -> HttpResponse:
    return HttpResponse(f"{text}\n", status=502, content_type="text/plain; charset=utf-8")
