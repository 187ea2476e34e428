"""The sidebar and the index of all pages: names, icons, order, and the permissions they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

_LIVE = (
    ("Overview", "monitoring", "admin:index", ()),
    ("Fleet", "view_module", "dashboard:fleet", ("gpus.view_server",)),
    ("Queues", "format_list_numbered", "dashboard:queues", ("gpus.view_modelconfig", "jobs.view_job")),
    ("Usage", "finance", "dashboard:usage", ("jobs.view_tenant",)),
    ("Flower", "local_florist", "flower", ("jobs.view_job",)),
)
"""Name, icon, route, and the permissions that the page needs."""

_GROUPS: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...] = (
    (
        "Work",
        (
            ("Jobs", "list_alt", "jobs", "job"),
            ("Dead letters", "mark_email_unread", "admin_ui", "deadletter"),
            ("Attempts", "play_circle", "jobs", "attempt"),
            ("Events", "history", "jobs", "event"),
            ("Callbacks", "send", "jobs", "callback"),
        ),
    ),
    (
        "Workflows",
        (
            ("Runs", "account_tree", "workflows", "run"),
            ("Questions", "pan_tool", "workflows", "wait"),
            ("Schedules", "calendar_month", "schedules", "schedule"),
            ("Firings", "event_repeat", "schedules", "firing"),
            ("Nodes", "linear_scale", "workflows", "node"),
            ("Definitions", "schema", "workflows", "workflow"),
            ("Versions", "history_edu", "workflows", "version"),
        ),
    ),
    (
        "Fleet",
        (
            ("Servers", "dns", "gpus", "server"),
            ("Models", "deployed_code", "gpus", "modelconfig"),
            ("Pools", "hub", "gpus", "pool"),
            ("Placements", "pin_drop", "gpus", "placement"),
            ("Quarantine", "health_and_safety", "gpus", "quarantinedslot"),
            ("Pauses", "pause_circle", "gpus", "pause"),
        ),
    ),
    (
        "Clients",
        (("Tenants", "groups", "jobs", "tenant"), ("API keys", "key", "jobs", "apikey")),
    ),
    (
        "Records",
        (
            ("Audit", "policy", "gpus", "auditentry"),
            ("Model versions", "history_edu", "gpus", "configversion"),
            ("Run events", "history", "workflows", "runevent"),
            ("Tags of runs", "sell", "workflows", "runtag"),
            ("Signals", "campaign", "workflows", "sentsignal"),
            ("Maps", "grid_view", "workflows", "mapstate"),
            ("Cached results", "cached", "workflows", "cachedoutput"),
            ("Map lists", "list", "workflows", "mapchunk"),
            ("Map files", "description", "workflows", "mapfile"),
            ("End notices", "outbox", "jobs", "endnotice"),
            ("Delivery log", "outgoing_mail", "jobs", "callbacktry"),
            ("Receivers", "link_off", "jobs", "receivercircuit"),
            ("Pushed results", "move_to_inbox", "jobs", "pushedresult"),
            ("Idempotency keys", "content_copy", "jobs", "idempotencykey"),
            ("Tags", "sell", "jobs", "jobtag"),
            ("Purge ledger", "delete_sweep", "jobs", "purgeledger"),
            ("Rollups", "bar_chart", "jobs", "rollup"),
            ("Usage by tag", "sell", "jobs", "tagusage"),
            ("Counters", "tag", "jobs", "tally"),
            ("Sweeps", "cleaning_services", "jobs", "sweeprun"),
            ("Worker heartbeats", "vital_signs", "jobs", "workersign"),
            ("Processes", "memory", "gpus", "process"),
            ("Index layouts", "layers", "gpus", "fleetindex"),
        ),
    ),
    (
        "Access",
        (
            ("Users", "person", "auth", "user"),
            ("Groups", "badge", "auth", "group"),
            ("Failed sign-ins", "lock_clock", "jobs", "signinfailure"),
        ),
    ),
)

_ADD_SERVER = ("Add a model server", "add_circle", "admin:gpus_server_register", ("gpus.add_server",))
"""A page of the group *Fleet*, with the fields of `_LIVE`."""


def side_bar(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the sidebar's groups of links, without pages that the user may not see. For `UNFOLD`."""
    groups: list[dict[str, Any]] = [{"title": "Now", "items": _links(request, _LIVE)}]
    for title, entries in _GROUPS:
        items = [
            {"title": name, "icon": icon, "link": reverse(f"admin:{app}_{model}_changelist")}
            for name, icon, app, model in entries
            if _may_see(app, model)(request)
        ]
        if title == "Fleet":
            items += _links(request, (_ADD_SERVER,))
        if items:
            groups.append(
                {"title": title, "separator": True, "collapsible": title == "Records", "items": items}
            )
    return groups


def tidy_index(request: HttpRequest, context: dict[str, Any]) -> dict[str, Any]:
    """Give the start page's list of pages the names and the order of the sidebar."""
    known = {
        (app["app_label"], entry["object_name"].lower()): entry
        for app in context["app_list"]
        for entry in app["models"]
    }
    groups = []
    for title, entries in _GROUPS:
        named = [(known.get((app, model)), name) for name, _, app, model in entries]
        models = [entry | {"name": name} for entry, name in named if entry is not None]
        if models:
            groups.append({"name": title, "app_label": title.lower(), "app_url": "", "models": models})
    context["app_list"] = groups
    context["title"] = "Overview"
    return context


def _links(
    request: HttpRequest, pages: tuple[tuple[str, str, str, tuple[str, ...]], ...]
) -> list[dict[str, Any]]:
    return [
        {"title": name, "icon": icon, "link": reverse(route)}
        for name, icon, route, permissions in pages
        if request.user.has_perms(permissions)
    ]


def _may_see(app: str, model: str) -> Callable[[HttpRequest], bool]:
    return lambda request: bool(
        request.user.has_perm(f"{app}.view_{model}") or request.user.has_perm(f"{app}.change_{model}")
    )
