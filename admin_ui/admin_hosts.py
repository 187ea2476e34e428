"""The admin on a host of its own: under other names its pages do not exist."""

from __future__ import annotations

from collections.abc import Callable

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host

from jobs.api.errors import not_found


class AdminHosts:
    """404 for the admin's path under a name that DISPATCHER_ADMIN_HOSTS does not have."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        hosts, path = settings.DISPATCHER.admin_hosts, settings.DISPATCHER.admin_path
        if hosts and f"{request.path_info}/".startswith(f"/{path}/"):
            name, _ = split_domain_port(request.get_host())
            if not validate_host(name, hosts):
                return not_found(request, Http404())  # type: ignore[return-value]
        return self._get_response(request)
