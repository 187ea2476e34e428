"""The dashboard's routes below the admin's path. All need a staff account; each view checks its
permissions."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from admin_ui import ADMIN_PATH
from admin_ui.dashboard import controls, pages
from admin_ui.dashboard.usage import usage_page

_staff = admin.site.admin_view

_pages = [
    path("now/", _staff(pages.overview_part), name="overview_part"),
    path("pulse/", _staff(pages.pulse), name="pulse"),
    path("fleet/", _staff(pages.fleet_page), name="fleet"),
    path("fleet/<str:name>/switch/", _staff(controls.switch_server), name="switch_server"),
    path("fleet/<str:name>/slots/", _staff(controls.set_slots), name="set_slots"),
    path("fleet/<str:name>/free/<int:index>/", _staff(controls.free_slot), name="free_slot"),
    path("queues/", _staff(pages.queues_page), name="queues"),
    path("usage/", _staff(usage_page), name="usage"),
    path("pause/", _staff(controls.pause), name="pause"),
    path("resume/", _staff(controls.resume), name="resume"),
]
dashboard_urls = [path(f"{ADMIN_PATH}/", include((_pages, "dashboard")))]
