"""Registers the admin's pages: Django imports this module. Each subject has a file in `admin_ui.pages`."""

from __future__ import annotations

from django.contrib import admin

from admin_ui.pages import (
    account,
    audit,
    clients,
    deliveries,
    history,
    jobs,
    models,
    pauses,
    schedules,
    servers,
    workflows,
)

__all__ = [
    "account",
    "audit",
    "clients",
    "deliveries",
    "history",
    "jobs",
    "models",
    "pauses",
    "schedules",
    "servers",
    "workflows",
]

admin.site.index_template = "admin_ui/dashboard/overview.html"
