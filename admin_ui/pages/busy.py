"""A page that had to hash a password while too many others did: changing one, making a user."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from admin_ui.pages.sign_in import refused_page
from jobs.operations.passwords import PasswordsBusy
from jobs.operations.sign_in import note_refusal


class PasswordsBusyMiddleware:
    """503 with a `Retry-After`."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self._get_response(request)

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if not isinstance(error, PasswordsBusy):
            return None
        note_refusal(error)
        return refused_page(request, error)
