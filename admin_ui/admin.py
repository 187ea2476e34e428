"""Where Django looks for pages; each subject has a file of its own."""

from __future__ import annotations

from django.contrib import admin

from . import (
    account_pages,
    audit_pages,
    client_pages,
    dead_letter_pages,
    delivery_pages,
    fleet_pages,
    history_pages,
    job_pages,
    pause_pages,
    server_pages,
    version_pages,
)

__all__ = [
    "account_pages",
    "audit_pages",
    "client_pages",
    "dead_letter_pages",
    "delivery_pages",
    "fleet_pages",
    "history_pages",
    "job_pages",
    "pause_pages",
    "server_pages",
    "version_pages",
]

admin.site.index_template = "admin_ui/dashboard/overview.html"
