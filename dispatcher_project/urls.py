"""Every route of the web process."""

from __future__ import annotations

from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.generic import RedirectView

from admin_ui import ADMIN_PATH
from admin_ui.dashboard.urls import dashboard_urls
from admin_ui.pages.flower import flower_urls
from admin_ui.pages.sign_in import sign_in_page
from gpus.api.urls import registry_urls
from jobs import ports
from jobs.api.documents import Document, Swagger
from jobs.api.errors import unknown_route
from jobs.api.urls import control_urls, dead_letter_urls, queue_urls, root_urls
from workflows.api.urls import workflow_urls

admin.autodiscover()


def _ports() -> ports.Ports:
    """Look the ports up for each request, so that tests can replace them."""
    return ports.production_ports()


api_urls: list[URLPattern | URLResolver] = [
    *queue_urls,
    *workflow_urls,
    path("admin/", include([*registry_urls(_ports), *control_urls, *dead_letter_urls])),
    path("schema", Document.as_view(), name="schema"),
    path("docs", Swagger.as_view(url_name="schema")),
]

urlpatterns = [
    path("", RedirectView.as_view(url="/api/v1/docs")),  # the bare address
    *root_urls,
    path("api/v1/", include(api_urls)),
    re_path(r"^api/(?P<rest>.*)$", unknown_route),
    *flower_urls(),
    *dashboard_urls,
    path(f"{ADMIN_PATH}/login/", sign_in_page()),
    path(f"{ADMIN_PATH}/", admin.site.urls),
]

handler400 = "jobs.api.errors.bad_request"
handler403 = "jobs.api.errors.permission_denied"
handler404 = "jobs.api.errors.not_found"
handler500 = "jobs.api.errors.server_error"
