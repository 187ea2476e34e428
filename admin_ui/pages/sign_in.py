"""The admin's sign-in behind its limits (docs/explanation/security.md, "Sign-in, sessions and keys"), and the
503 of other pages that hash a password while too many are being hashed."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters

from foundation.network import network_of
from jobs.api.errors import answer, refusal_problem
from jobs.domain.errors import Refused
from jobs.operations import sign_in as limits
from jobs.operations.sign_in import PasswordsBusy, note_refusal

log = structlog.get_logger()


def sign_in_page() -> Callable[[HttpRequest], HttpResponseBase]:
    """Return the sign-in view, which counts the sign-ins in progress in this process."""
    in_flight = limits.SignInsInFlight()

    @never_cache
    @sensitive_post_parameters("password")
    @csrf_protect
    def sign_in(request: HttpRequest) -> HttpResponseBase:
        """Django's own page; 429 or 503 once a limit is reached."""
        account = request.POST.get("username", "")
        if request.method != "POST" or not account:
            return admin.site.login(request)
        address = network_of(request.META.get("REMOTE_ADDR") or "")
        try:
            with in_flight.enter(address):
                return _try(request, address, account)
        except Refused as refused:
            limits.note_refusal(refused)
            log.warning("sign_in_refused", address=address, user=_known(account), why=str(refused))
            return refused_page(request, refused)

    return sign_in


def _try(request: HttpRequest, address: str, account: str) -> HttpResponse:
    """Sign in and update the counts of failures. Raises Refused."""
    limits.count_try(address, account, timezone.now())
    try:
        page = admin.site.login(request)
    except PasswordsBusy:
        limits.forget_try(address, account)
        raise
    if page.status_code == 302:
        limits.forget_failures(address, account)
        log.info("signed_in", address=address, user=_known(account))
    else:
        log.warning("sign_in_failed", address=address, user=_known(account))
    return page


def refused_page(request: HttpRequest, refused: Refused) -> HttpResponse:
    """Return the refusal as an HTML page for browsers, as problem+json for other clients."""
    problem = refusal_problem(refused)
    if "text/html" not in request.headers.get("Accept", ""):
        return answer(problem)
    context = {**admin.site.each_context(request), "title": "Sign-in refused", "why": str(refused)}
    page = render(request, "admin_ui/sign_in_refused.html", context, status=problem.status)
    for name, value in problem.headers.items():
        page[name] = value
    return page


def _known(account: str) -> str | None:
    """The account if it exists. Other texts are not logged: users type passwords into the wrong field."""
    users = get_user_model().objects.filter(username=account[:150])
    return account if users.exists() else None


class PasswordsBusyMiddleware:
    """Answers 503 with `Retry-After` to a password change or a new user while too many passwords are
    hashed."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, PasswordsBusy):
            return None
        note_refusal(error)
        return refused_page(request, error)
